#include "report/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/quote.h"
#include "io/file.h"
#include "report/format.h"
#include "report/gnuplot.h"

namespace heed {
namespace {

struct Shade {
  float from;  // the least weight that it stands for
  const char *utf8, *ascii;
};
constexpr std::array<Shade, 5> kShades = {{{0, "··", ". "},
                                           {0.05f, "░░", "::"},
                                           {0.2f, "▒▒", "oo"},
                                           {0.5f, "▓▓", "XX"},
                                           {0.8f, "██", "##"}}};
constexpr size_t kWidestLabel = 10;
// Points of a picture: the least side of a map, a label's line and the width of its characters.
constexpr int kMapPoints = 190, kLabelLine = 8, kLabelCharacter = 5;
constexpr int kGap = 12, kTitle = 22;

const Shade& ShadeOf(float weight) {
  size_t at = kShades.size() - 1;
  while (at > 0 && weight < kShades[at].from) --at;
  return kShades[at];
}

// At most `width` whole characters.
std::string Cut(std::string_view text, size_t width) {
  size_t end = 0;
  for (size_t taken = 0; end < text.size(); ++end) {
    const bool begins = (text[end] & 0xC0) != 0x80;
    if (begins && taken++ == width) break;
  }
  return std::string(text.substr(0, end));
}

size_t WidestLabel(std::span<const std::string> labels) {
  size_t widest = 1;
  for (const std::string& label : labels) widest = std::max(widest, TextWidth(label));
  return std::min(kWidestLabel, widest);
}

// The ticks of an axis: a label for each token, without marks.
std::string LabelTics(char axis, std::span<const std::string> labels) {
  std::string tics;
  for (size_t i = 0; i < labels.size(); ++i) {
    tics +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", GnuplotQuoted(Cut(labels[i], kWidestLabel)), i);
  }
  return fmt::format("set {0}tics scale 0 offset {1} font ',7' textcolor rgb '#333333' {2} ({3})\n",
                     axis, axis == 'x' ? "0,0.3" : "0.5,0",
                     axis == 'x' && WidestLabel(labels) > 1 ? "rotate by 90 right" : "norotate",
                     tics);
}

}  // namespace

std::string TokenLabel(std::string_view text, bool utf8) {
  std::string label;
  for (const char c : text) {
    if (c == '\n' && utf8) {
      label += "↵";
    } else {
      label += c;
    }
  }
  return Printable(label);
}

std::string DrawHeatMap(const HeatMap& map, std::span<const std::string> labels, bool utf8) {
  const size_t widest = WidestLabel(labels);
  std::string out(widest + 2, ' ');
  for (const std::string& label : labels) {
    const std::string first = Cut(label, 1);
    out += first + (first.empty() ? "  " : " ");
  }
  while (out.back() == ' ') out.pop_back();
  out += "\n";
  for (int64_t t = 0; t < static_cast<int64_t>(labels.size()); ++t) {
    const std::string label = Cut(labels[static_cast<size_t>(t)], widest);
    out += std::string(widest - TextWidth(label), ' ') + label + "  ";
    for (int64_t s = 0; s <= t; ++s) {
      const Shade& shade = ShadeOf(map.weights[static_cast<size_t>(t * map.T + s)]);
      out += utf8 ? shade.utf8 : shade.ascii;
    }
    while (out.back() == ' ') out.pop_back();
    out += "\n";
  }
  return out;
}

std::string HeatMapLegend(bool utf8) {
  std::string out = "shades:";
  for (size_t i = 0; i < kShades.size(); ++i) {
    const std::string shade = utf8 ? kShades[i].utf8 : kShades[i].ascii;
    out += i == 0 ? fmt::format(" {} below {}", shade, kShades[1].from)
                  : fmt::format(", {} from {}", shade, kShades[i].from);
  }
  return out;
}

Status WriteHeatMaps(std::span<const HeatMap> maps, int64_t columns,
                     std::span<const std::string> labels, const std::string& title,
                     const std::string& path, bool overwrite) {
  const bool png = path.ends_with(".png");
  if (!png && !path.ends_with(".svg")) {
    return BadRequest(path, "no known ending", ".svg, .png or .safetensors");
  }
  const auto count = static_cast<int64_t>(maps.size());
  const int64_t rows = (count + columns - 1) / columns;
  const int points = std::max(kMapPoints, kLabelLine * static_cast<int>(labels.size()));
  const int side = points + kGap;
  const int label_points = kLabelCharacter * (1 + static_cast<int>(WidestLabel(labels)));
  const int width = label_points + static_cast<int>(columns) * side + kGap;
  const int height = static_cast<int>(rows) * (side + kTitle) + kTitle + kGap + label_points;
  std::string script = GnuplotTerminal(png, width, height);
  script +=
      "set encoding utf8\nunset key\nunset colorbox\nunset tics\nset border lc rgb '#bbbbbb'\n"
      "set palette defined (0 '#ffffff', 0.25 '#b9d3ea', 1 '#123a63')\nset cbrange [0:1]\n"
      "set multiplot\n";
  script += fmt::format("set label 1 {} at screen {:.6f}, screen {:.6f} left tc rgb '#333333'\n",
                        GnuplotQuoted(title), double(kGap) / width, 1 - 14.0 / height);
  for (int64_t i = 0; i < count; ++i) {
    const HeatMap& map = maps[static_cast<size_t>(i)];
    script += i % columns == 0 ? LabelTics('y', labels) : "unset ytics\n";
    script += i + columns >= count ? LabelTics('x', labels) : "unset xtics\n";
    script += "$map << EOD\n";
    for (int64_t t = 0; t < map.T; ++t) {
      for (int64_t s = 0; s < map.T; ++s) {
        script += s > t ? "NaN "
                        : fmt::format("{:.3g} ", map.weights[static_cast<size_t>(t * map.T + s)]);
      }
      script += "\n";
    }
    const double left = kGap + label_points + static_cast<double>(i % columns) * side;
    const double top = 2.0 * kTitle + static_cast<double>(i / columns) * (side + kTitle);
    script += fmt::format(
        "EOD\nset lmargin at screen {:.6f}\nset rmargin at screen {:.6f}\n"
        "set tmargin at screen {:.6f}\nset bmargin at screen {:.6f}\n"
        "set label 2 {} at graph 0, graph 1 left offset 0,0.6 tc rgb '#333333'\n"
        "plot [-0.5:{:.1f}] [{:.1f}:-0.5] $map matrix with image pixels\nunset label 1\n",
        left / width, (left + points) / width, 1 - top / height, 1 - (top + points) / height,
        GnuplotQuoted(map.title), double(map.T) - 0.5, double(map.T) - 0.5);
  }
  HEED_ASSIGN(const std::string bytes, RunGnuplot(script + "unset multiplot\n"));
  const std::string_view piece = bytes;
  return WriteFileAtomically(path, {&piece, 1}, overwrite);
}

}  // namespace heed
