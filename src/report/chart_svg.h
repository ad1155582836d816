// Pictures as SVG to stand inside a page, in the page's own colours.
#pragma once

#include <span>
#include <string>

#include "report/heatmap.h"
#include "report/plot.h"

namespace heed {

// The curves with axes and legend. Colours come from the page's classes chart, grid, tick, s0 ...
// s5 (by run, or train and held-out of one run), raw, held,
// dots (where held-out losses were measured) and floor.
std::string ChartSvg(const Picture& picture);

// A map as squares of the current colour, as opaque as their weights, each row and key named in
// the tooltip of its row.
std::string HeatMapSvg(const HeatMap& map, std::span<const std::string> labels);

}  // namespace heed
