// Curves as pictures, through gnuplot.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/file.h"
#include "report/format.h"
#include "report/gnuplot.h"
#include "report/plot.h"

namespace heed {
namespace {

constexpr std::array<std::string_view, 6> kColours = {"1f6fb4", "d1495b", "2a9d6f",
                                                      "e08e2b", "7a5ab5", "5c6b73"};
constexpr std::string_view kHeldOutColour = "e0762b";  // beside a single run's blue
constexpr std::string_view kInk = "#333333", kPale = "#dddddd", kGrey = "#777777";
constexpr size_t kMostPoints = 2000;
constexpr size_t kRoomyPoints = 60;  // more held-out points than these have smaller marks

// The lowest and the highest point of each of many pieces, in order: looks the same, small.
Series Thinned(const Series& series) {
  const size_t n = series.x.size();
  if (n <= kMostPoints) return series;
  Series out = series;
  out.x.clear();
  out.y.clear();
  const size_t pieces = kMostPoints / 2;
  for (size_t piece = 0; piece < pieces; ++piece) {
    const auto begin = series.y.begin() + static_cast<ptrdiff_t>(piece * n / pieces);
    const auto end = series.y.begin() + static_cast<ptrdiff_t>((piece + 1) * n / pieces);
    auto [low, high] = std::minmax_element(begin, end);
    if (high < low) std::swap(low, high);
    for (const auto at : {low, high}) {
      out.x.push_back(series.x[static_cast<size_t>(at - series.y.begin())]);
      out.y.push_back(*at);
      if (low == high) break;
    }
  }
  return out;
}

std::string TickList(const std::vector<Tick>& ticks) {
  std::string out;
  for (const Tick& tick : ticks) {
    out += fmt::format("{}{} {:.17g}", out.empty() ? "" : ", ", GnuplotQuoted(tick.label), tick.at);
  }
  return "(" + out + ")";
}

std::string StyleOf(const Series& series, size_t runs) {
  const bool held_out = series.kind == SeriesKind::kHeldOut;
  const std::string_view colour =
      held_out && runs == 1 ? kHeldOutColour : kColours[series.run % kColours.size()];
  if (series.kind == SeriesKind::kRaw) return fmt::format("with lines lw 1 lc rgb '#a8{}'", colour);
  // What was measured now and then has a mark wherever it was; a line needs two points.
  if (held_out || series.x.size() == 1) {
    return fmt::format("with linespoints lw 1.2 dt (5,4) pt 7 ps {} lc rgb '#{}'",
                       series.x.size() <= kRoomyPoints ? 0.6 : 0.4, colour);
  }
  return fmt::format("with lines lw 2.2 lc rgb '#{}'", colour);
}

// The commands that draw one picture between two heights of the canvas, as shares of it.
std::string Panel(const Picture& picture, double bottom, double top) {
  const Frame frame = FrameOf(picture);
  const auto at = [&](double share) { return bottom + share * (top - bottom); };
  std::string script = "reset\nset encoding utf8\nset datafile missing 'NaN'\n";
  script += fmt::format("set border 3 lc rgb '{}'\n", kGrey);
  script += fmt::format("set grid xtics ytics back lt 1 lw 0.6 lc rgb '{}'\n", kPale);
  // Names of more runs than these would lie over their curves.
  const bool names_beside = picture.runs > 3;
  script +=
      fmt::format("set lmargin screen 0.085\nset rmargin screen {}\n", names_beside ? 0.66 : 0.97);
  script +=
      fmt::format("set tmargin screen {:.6g}\nset bmargin screen {:.6g}\n", at(0.89), at(0.13));
  script += fmt::format("set label 1 {} at graph 0, screen {:.6g} left font ',17' tc rgb '{}'\n",
                        GnuplotQuoted(picture.title), at(0.945), kInk);
  script += fmt::format("set xlabel {} tc rgb '{}'\n", GnuplotQuoted(picture.x_label), kInk);
  script +=
      fmt::format("set ylabel {} offset 0.5,0 tc rgb '{}'\n", GnuplotQuoted(picture.y_label), kInk);
  script += "set tics nomirror out scale 0.5\n";
  script += fmt::format("set xrange [{:.17g}:{:.17g}]\n", frame.left, frame.right);
  script += fmt::format("set yrange [{:.17g}:{:.17g}]\n", frame.bottom, frame.top);
  if (picture.log_y) script += "set logscale y\nunset mytics\n";
  script += fmt::format("set xtics {} tc rgb '{}'\n",
                        TickList(Ticks(frame.left, frame.right, 9, false)), kInk);
  script += fmt::format("set ytics {} tc rgb '{}'\n",
                        TickList(Ticks(frame.bottom, frame.top, 8, picture.log_y)), kInk);
  script += fmt::format(
      "set key {} Left reverse samplen 2 spacing 1.3 tc rgb '{}'\n",
      names_beside ? fmt::format("at screen 0.67, screen {:.6g} left top", at(0.89)) : "top right",
      kInk);
  std::string plots;
  const auto add = [&](size_t number, const std::string& label, const std::vector<double>& x,
                       const std::vector<double>& y, const std::string& style) {
    script += fmt::format("$s{} << EOD\n", number);
    for (size_t point = 0; point < x.size(); ++point) {
      script += fmt::format("{:.9g} {:.9g}\n", x[point], y[point]);
    }
    script += "EOD\n";
    const std::string title =
        label.empty() ? "notitle" : "title " + GnuplotQuoted(label + " " + FormatFigure(y.back()));
    plots +=
        fmt::format("{}$s{} using 1:2 {} {}", number == 0 ? "plot " : ", ", number, title, style);
  };
  const size_t n = picture.series.size();
  for (size_t i = 0; i < n; ++i) {
    const Series series = Thinned(picture.series[i]);
    add(i, series.label, series.x, series.y, StyleOf(series, picture.runs));
  }
  if (picture.floor) {
    add(n, picture.floor_label, {frame.left, frame.right}, {*picture.floor, *picture.floor},
        fmt::format("with lines dt (2,3) lw 1.5 lc rgb '{}'", kGrey));
  }
  return script + plots + "\n";
}

}  // namespace

Status WritePictures(std::span<const Picture> panels, const std::string& path, bool overwrite) {
  const bool png = path.ends_with(".png");
  if (!png && !path.ends_with(".svg")) {
    return BadRequest(path, "no known ending", ".svg or .png");
  }
  for (const Picture& picture : panels) {
    if (picture.series.empty()) {
      return BadRequest(path, "nothing to draw", "a logged iteration or more");
    }
  }
  const auto n = static_cast<int>(panels.size());
  std::string script = GnuplotTerminal(png, 900, 540 * n);
  if (n > 1) script += "set multiplot\n";
  for (int i = 0; i < n; ++i) {
    script += Panel(panels[static_cast<size_t>(i)], static_cast<double>(n - 1 - i) / n,
                    static_cast<double>(n - i) / n);
  }
  HEED_ASSIGN(const std::string bytes, RunGnuplot(script));
  const std::string_view piece = bytes;
  return WriteFileAtomically(path, {&piece, 1}, overwrite);
}

}  // namespace heed
