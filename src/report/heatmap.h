// Weights between 0 and 1 as shades: attention maps on a terminal and in pictures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace heed {

// A square of weights [T, T], rows over columns; entries right of the diagonal are left blank.
struct HeatMap {
  std::string title;
  int64_t T = 0;
  std::span<const float> weights;
};

// The map as lines of shades, two columns a weight, behind row labels and below a line of the
// labels' first characters. `labels` has T texts. Without utf8 the shades are ASCII.
std::string DrawHeatMap(const HeatMap& map, std::span<const std::string> labels, bool utf8);
// What the shades stand for: "shades: . below 0.05, ...".
std::string HeatMapLegend(bool utf8);

// Maps side by side, `columns` in a row, as SVG or PNG (told by the name's ending). Errors: as
// WritePicture.
Status WriteHeatMaps(std::span<const HeatMap> maps, int64_t columns, const std::string& title,
                     const std::string& path, bool overwrite);

}  // namespace heed
