#include "report/chart_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/format.h"
#include "report/table.h"

namespace heed {
namespace {

constexpr double kWidth = 540, kHeight = 350;
constexpr double kLeft = 48, kRight = 522, kTop = 34, kBottom = 306;
constexpr size_t kColours = 6, kMostPoints = 600;
constexpr float kLeastShown = 0.01f;

// From the picture's numbers to the drawing's.
class Scale {
 public:
  explicit Scale(const Picture& picture) : frame_(FrameOf(picture)), log_(picture.log_y) {}

  double X(double x) const {
    return kLeft + (x - frame_.left) / (frame_.right - frame_.left) * (kRight - kLeft);
  }
  double Y(double y) const {
    const double share = log_ ? std::log(y / frame_.bottom) / std::log(frame_.top / frame_.bottom)
                              : (y - frame_.bottom) / (frame_.top - frame_.bottom);
    return kBottom - share * (kBottom - kTop);
  }
  const Frame& frame() const { return frame_; }

 private:
  Frame frame_;
  bool log_;
};

std::string Axes(const Picture& picture, const Scale& scale) {
  std::string out;
  const Frame& f = scale.frame();
  for (const Tick& tick : Ticks(f.left, f.right, 5, false)) {
    const double x = scale.X(tick.at);
    out += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x, kTop, kBottom, kBottom + 18, HtmlText(tick.label));
  }
  for (const Tick& tick : Ticks(f.bottom, f.top, 6, picture.log_y)) {
    const double y = scale.Y(tick.at);
    out += fmt::format(
        "<path class=\"grid\" d=\"M{1} {0:.1f}H{2}\"/>"
        "<text class=\"tick\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        y, kLeft, kRight, kLeft - 8, y + 4, HtmlText(tick.label));
  }
  return out + fmt::format(
                   "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n"
                   "<text class=\"tick\" x=\"4\" y=\"20\">{}</text>\n",
                   kRight, kHeight - 8, HtmlText(picture.x_label), HtmlText(picture.y_label));
}

std::string ColourOf(const Series& series, size_t runs) {
  const bool held_out = series.kind == SeriesKind::kHeldOut;
  return fmt::format("s{}", runs == 1 ? held_out : series.run % kColours);
}

std::string ClassOf(const Series& series, size_t runs) {
  constexpr const char* kKinds[] = {" raw", "", " held"};
  return ColourOf(series, runs) + kKinds[static_cast<int>(series.kind)];
}

// Strokes of no length: round dots in the colour of the line.
std::string Dots(const Series& series, size_t runs, const std::string& path) {
  return fmt::format("<path class=\"{} dots\" d=\"{}\"/>\n", ColourOf(series, runs), path);
}

// What was measured now and then has a dot wherever it was.
std::string Line(const Series& series, size_t runs, const Scale& scale) {
  std::string points, dots;
  const size_t step = series.x.size() / kMostPoints + 1;
  for (size_t i = 0; i < series.x.size(); i += step) {
    const size_t at = i + step >= series.x.size() ? series.x.size() - 1 : i;
    const double x = scale.X(series.x[at]), y = scale.Y(series.y[at]);
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    dots += fmt::format("M{:.1f} {:.1f}h0", x, y);
  }
  return fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", ClassOf(series, runs), points) +
         (series.kind == SeriesKind::kHeldOut ? Dots(series, runs, dots) : "");
}

std::string Legend(const Picture& picture) {
  std::string out;
  double y = kTop + 14;
  const auto add = [&](const std::string& line, const std::string& label) {
    out += fmt::format(
        "<path class=\"{}\" d=\"M{} {:.0f}h22\"/>"
        "<text class=\"tick\" x=\"{}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n",
        line, kRight - 26, y - 4, kRight - 32, y, HtmlText(label));
    y += 18;
  };
  for (const Series& series : picture.series) {
    if (series.label.empty()) continue;
    if (series.kind == SeriesKind::kHeldOut) {
      out += Dots(series, picture.runs, fmt::format("M{} {:.0f}h0", kRight - 15, y - 4));
    }
    add(ClassOf(series, picture.runs), series.label + " " + FormatFigure(series.y.back()));
  }
  if (picture.floor) add("floor", picture.floor_label + " " + FormatFigure(*picture.floor));
  return out;
}

}  // namespace

std::string ChartSvg(const Picture& picture) {
  const Scale scale(picture);
  std::string out =
      fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                  kWidth, kHeight, HtmlText(picture.title));
  out += Axes(picture, scale);
  for (const Series& series : picture.series) out += Line(series, picture.runs, scale);
  if (picture.floor) {
    out += fmt::format("<path class=\"floor\" d=\"M{} {:.1f}H{}\"/>\n", kLeft,
                       scale.Y(*picture.floor), kRight);
  }
  return out + Legend(picture) + "</svg>\n";
}

std::string HeatMapSvg(const HeatMap& map, std::span<const std::string> labels) {
  const double T = static_cast<double>(map.T);
  std::string out = fmt::format(
      "<svg class=\"map\" viewBox=\"-0.2 -0.2 {0} {0}\" role=\"img\" aria-label=\"{1}\">\n"
      "<path class=\"frame\" d=\"M0 0V{2}H{2}Z\"/>\n",
      T + 0.4, HtmlText(map.title), map.T);
  for (int64_t t = 0; t < map.T; ++t) {
    const auto row =
        map.weights.subspan(static_cast<size_t>(t * map.T), static_cast<size_t>(t + 1));
    const auto most = std::ranges::max_element(row);
    const auto key = static_cast<size_t>(most - row.begin());
    out += fmt::format("<g><title>{}: most at {} ({:.2f})</title>",
                       HtmlText(labels[static_cast<size_t>(t)]), HtmlText(labels[key]), *most);
    for (size_t s = 0; s < row.size(); ++s) {
      if (row[s] < kLeastShown) continue;
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"1\" height=\"1\" opacity=\"{:.2f}\"/>", s,
                         t, row[s]);
    }
    out += "</g>\n";
  }
  return out + "</svg>\n";
}

}  // namespace heed
