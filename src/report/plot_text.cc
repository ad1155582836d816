// Pictures drawn with characters: a braille cell holds 2 x 4 dots.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/quote.h"
#include "report/format.h"
#include "report/plot.h"

namespace heed {
namespace {

// ANSI: blue, red, green, yellow, magenta, cyan; the held-out points of a single run are yellow.
constexpr std::array<int, 6> kColours = {34, 31, 32, 33, 35, 36};
constexpr int kHeldOutColour = 33;
constexpr int kNarrowest = 40, kLowest = 8;

struct Cell {
  unsigned dots = 0;       // braille bits
  std::string_view glyph;  // drawn in place of dots
  int colour = 0;
};

class Canvas {
 public:
  Canvas(const Picture& picture, const Frame& frame, int columns, int rows)
      : frame_(frame),
        log_(picture.log_y),
        columns_(columns),
        rows_(rows),
        cells_(static_cast<size_t>(columns * rows)) {}

  // Where a point lies in dots, from the upper left.
  int Across(double x) const {
    const double share = (x - frame_.left) / (frame_.right - frame_.left);
    return std::clamp(static_cast<int>(std::lround(share * (2 * columns_ - 1))), 0,
                      2 * columns_ - 1);
  }
  int Down(double y) const {
    const auto map = [&](double v) { return log_ ? std::log(v) : v; };
    const double share = (map(frame_.top) - map(y)) / (map(frame_.top) - map(frame_.bottom));
    return std::clamp(static_cast<int>(std::lround(share * (4 * rows_ - 1))), 0, 4 * rows_ - 1);
  }

  void Dot(int across, int down, int colour) {
    static constexpr unsigned kBits[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = At(across / 2, down / 4);
    cell.dots |= kBits[down % 4][across % 2];
    cell.colour = colour;
  }

  // One dot for every step along the longer side.
  void Line(int from_across, int from_down, int to_across, int to_down, int colour) {
    const int dx = to_across - from_across, dy = to_down - from_down;
    const int steps = std::max({std::abs(dx), std::abs(dy), 1});
    for (int i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / steps;
      Dot(from_across + static_cast<int>(std::lround(share * dx)),
          from_down + static_cast<int>(std::lround(share * dy)), colour);
    }
  }

  void Mark(double x, double y, std::string_view glyph, int colour) {
    Cell& cell = At(Across(x) / 2, Down(y) / 4);
    cell.glyph = glyph;
    cell.colour = colour;
  }

  Cell& At(int column, int row) { return cells_[static_cast<size_t>(row * columns_ + column)]; }

 private:
  Frame frame_;
  bool log_;
  int columns_, rows_;
  std::vector<Cell> cells_;
};

std::string Braille(unsigned dots) {
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

std::string Coloured(std::string_view text, int colour, bool wanted) {
  return wanted && colour != 0 ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : std::string(text);
}

constexpr std::string_view kUpper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::string_view kLower = "abcdefghijklmnopqrstuvwxyz";

// What marks a series among several runs: a letter, small for held-out points; in a picture of one
// run the line is bare and held-out points are dots.
std::string_view MarkOf(const Series& series, size_t runs, bool utf8) {
  const bool held_out = series.kind == SeriesKind::kHeldOut;
  if (runs > 1) return (held_out ? kLower : kUpper).substr(series.run % kUpper.size(), 1);
  if (held_out) return utf8 ? "●" : "o";
  return series.x.size() == 1 ? (utf8 ? "•" : "*") : "";
}

int ColourOf(const Series& series, size_t runs) {
  const bool beside = series.kind == SeriesKind::kHeldOut && runs == 1;
  return beside ? kHeldOutColour : kColours[series.run % kColours.size()];
}

// The end of a text that is too long, behind dots.
std::string Shortened(const std::string& text, int width, bool utf8) {
  if (static_cast<int>(TextWidth(text)) <= width) return text;
  const std::string dots = utf8 ? "…" : "..";
  std::string out = text;
  while (!out.empty() && static_cast<int>(TextWidth(out) + TextWidth(dots)) > width) {
    out.erase(0, 1);
    while (!out.empty() && (out[0] & 0xC0) == 0x80) out.erase(0, 1);
  }
  return dots + out;
}

void DrawSeries(const Series& series, size_t runs, bool utf8, Canvas& canvas) {
  const int colour = ColourOf(series, runs);
  const std::string_view mark = MarkOf(series, runs, utf8);
  if (series.kind == SeriesKind::kHeldOut || series.x.size() == 1) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      canvas.Mark(series.x[i], series.y[i], mark, colour);
    }
    return;
  }
  for (size_t i = 1; i < series.x.size(); ++i) {
    canvas.Line(canvas.Across(series.x[i - 1]), canvas.Down(series.y[i - 1]),
                canvas.Across(series.x[i]), canvas.Down(series.y[i]), colour);
  }
  if (mark.empty()) return;
  // The letter stands at four places of its line, shifted from run to run.
  for (size_t quarter = 0; quarter < 4; ++quarter) {
    const double share = (static_cast<double>(quarter) + 0.3 + 0.15 * (series.run % 4)) / 4;
    const auto i = static_cast<size_t>(share * static_cast<double>(series.x.size() - 1));
    canvas.Mark(series.x[i], series.y[i], mark, colour);
  }
}

std::string Legend(const Picture& picture, const TextPlotStyle& style) {
  std::string out;
  int used = 0;
  const auto add = [&](std::string_view mark, const std::string& text, int colour) {
    const std::string shown = Shortened(text, style.width - 8, style.utf8);
    const int width = static_cast<int>(TextWidth(mark) + TextWidth(shown)) + 4;
    if (used > 0 && used + width > style.width) {
      out += "\n";
      used = 0;
    }
    used += width;
    out += "   " + Coloured(mark, colour, style.colour) + " " + shown;
  };
  for (const Series& series : picture.series) {
    if (series.label.empty()) continue;
    std::string_view mark = MarkOf(series, picture.runs, style.utf8);
    if (mark.empty()) mark = style.utf8 ? "⠒⠒" : "..";
    add(mark, Printable(series.label) + " " + FormatFigure(series.y.back()),
        ColourOf(series, picture.runs));
  }
  if (picture.floor) {
    add(style.utf8 ? "╌╌" : "--",
        Printable(picture.floor_label) + " " + FormatFigure(*picture.floor), 0);
  }
  return out + "\n";
}

}  // namespace

std::string DrawPicture(const Picture& picture, const TextPlotStyle& style) {
  if (picture.series.empty()) return "nothing to draw yet\n";
  const int width = std::max(style.width, kNarrowest);
  const int rows = std::max(style.height, kLowest) - 4;  // title, legend, axis, its numbers
  const Frame frame = FrameOf(picture);
  const std::vector<Tick> y_ticks = Ticks(frame.bottom, frame.top, rows / 2, picture.log_y);
  int margin = 0;
  for (const Tick& tick : y_ticks) margin = std::max(margin, static_cast<int>(tick.label.size()));
  const int columns = width - margin - 3;
  const bool utf8 = style.utf8;

  Canvas canvas(picture, frame, columns, rows);
  if (picture.floor) {
    const int row = canvas.Down(*picture.floor) / 4;
    for (int i = 0; i < columns; ++i) canvas.At(i, row).glyph = utf8 ? "╌" : "-";
  }
  for (const Series& series : picture.series) {
    if (series.kind != SeriesKind::kRaw) DrawSeries(series, picture.runs, utf8, canvas);
  }

  const std::string title = Printable(picture.title);
  std::string heading =
      title + " (" + (picture.log_y ? "log scale" : picture.y_label) + ") over " + picture.x_label;
  if (static_cast<int>(TextWidth(heading)) > columns) heading = Shortened(title, columns, utf8);
  std::string out =
      std::string(static_cast<size_t>(margin) + 3, ' ') + heading + "\n" + Legend(picture, style);
  std::vector<std::string> labels(static_cast<size_t>(rows));
  for (const Tick& tick : y_ticks) {
    labels[static_cast<size_t>(canvas.Down(tick.at) / 4)] = tick.label;
  }
  for (int row = 0; row < rows; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    std::string line = fmt::format(" {:>{}} {}", label, margin,
                                   label.empty() ? (utf8 ? "│" : "|") : (utf8 ? "┤" : "+"));
    for (int column = 0; column < columns; ++column) {
      const Cell& cell = canvas.At(column, row);
      const std::string text = !cell.glyph.empty() ? std::string(cell.glyph)
                               : cell.dots == 0    ? " "
                               : utf8              ? Braille(cell.dots)
                                                   : ".";
      line += Coloured(text, cell.colour, style.colour);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }

  // The axis, and its numbers centred under their ticks where they do not touch.
  std::vector<std::string> axis(static_cast<size_t>(columns), utf8 ? "─" : "-");
  std::string numbers(static_cast<size_t>(width), ' ');
  for (const Tick& tick : Ticks(frame.left, frame.right, columns / 10, false)) {
    const int column = canvas.Across(tick.at) / 2;
    axis[static_cast<size_t>(column)] = utf8 ? "┬" : "+";
    const int at = margin + 3 + column - static_cast<int>(tick.label.size()) / 2;
    const size_t from = static_cast<size_t>(std::max(at, 0)), size = tick.label.size();
    if (from + size > numbers.size()) continue;
    if (numbers.find_first_not_of(' ', from > 0 ? from - 1 : 0) < from + size + 1) continue;
    numbers.replace(from, size, tick.label);
  }
  out += std::string(static_cast<size_t>(margin) + 2, ' ') + (utf8 ? "└" : "+");
  for (const std::string& piece : axis) out += piece;
  numbers.erase(numbers.find_last_not_of(' ') + 1);
  return out + "\n" + numbers + "\n";
}

}  // namespace heed
