// Weights between 0 and 1 as shades: attention maps on a terminal and in pictures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace heed {

// A square of weights [T, T], rows over columns; entries right of the diagonal are left blank.
struct HeatMap {
  std::string title;
  int64_t T = 0;
  std::span<const float> weights;
};

// A token of that text as a label: the end of a line becomes a sign, with utf8.
std::string TokenLabel(std::string_view text, bool utf8);

// The map as lines of shades, two columns a weight, behind row labels of at most ten and below a
// line of the labels' first characters. As many positions as there are labels, at most T. Without
// utf8 the shades are ASCII.
std::string DrawHeatMap(const HeatMap& map, std::span<const std::string> labels, bool utf8);
// What the shades stand for: "shades: . below 0.05, ...".
std::string HeatMapLegend(bool utf8);

// Maps of the same tokens side by side, `columns` in a row, as SVG or PNG (told by the name's
// ending): the tokens stand left of each row of maps and below the last map of each column. Errors:
// as WritePictures.
Status WriteHeatMaps(std::span<const HeatMap> maps, int64_t columns,
                     std::span<const std::string> labels, const std::string& title,
                     const std::string& path, bool overwrite);

}  // namespace heed
