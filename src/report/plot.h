// Curves of loss and perplexity: pictures through gnuplot, and drawings for a terminal.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/status.h"
#include "io/metrics.h"

namespace heed {

enum class PlotMetric { kLoss, kPerplexity };
enum class PlotX { kIterations, kTokens };
std::span<const EnumName<PlotMetric>> EnumNames(PlotMetric);
std::span<const EnumName<PlotX>> EnumNames(PlotX);

struct RunCurve {
  std::string name;
  std::vector<MetricsRow> rows;
};

struct PlotRequest {
  PlotMetric metric = PlotMetric::kLoss;
  PlotX x = PlotX::kIterations;
  std::optional<double> floor;  // a loss in nats, drawn as exp(floor) among perplexities
  std::string floor_label = "floor";
};

enum class SeriesKind { kRaw, kSmoothed, kHeldOut };

// Points of one line, finite, in order of x.
struct Series {
  std::string label;  // in the legend; empty for none
  SeriesKind kind = SeriesKind::kSmoothed;
  size_t run = 0;
  std::vector<double> x, y;
};

struct Picture {
  std::string title, x_label, y_label;
  bool log_y = false;
  size_t runs = 1;
  std::vector<Series> series;
  std::optional<double> floor;
  std::string floor_label;
};

// The mean of each point's neighbours over a window of a 25th of the points: centred and narrower
// at the start, one-sided at the end.
std::vector<double> Smoothed(std::span<const double> y);

// What a picture of these runs shows. Losses are smoothed and then turned into perplexities: the
// exponential of a mean, never the mean of exponentials. The y axis is logarithmic when
// perplexities span more than a factor of 8. Points that are not finite are left out.
Picture MakePicture(std::span<const RunCurve> runs, const PlotRequest& request);

// The ranges of the axes: the points and the floor, with some room above and below.
struct Frame {
  double left, right, bottom, top;
};
Frame FrameOf(const Picture& picture);

// Positions and texts of an axis's ticks: at most about `most` of them inside [low, high].
struct Tick {
  double at;
  std::string label;
};
std::vector<Tick> Ticks(double low, double high, int most, bool log);

// Writes one SVG or PNG, told by the name's ending, with the pictures one below the other. Errors:
// kRequest for another ending or a picture without points, kIo when gnuplot is not installed or
// failed, when the file exists and `overwrite` is false, or cannot be written.
Status WritePictures(std::span<const Picture> panels, const std::string& path, bool overwrite);

// A picture's file and what it shows, from its top.
struct PictureFile {
  std::string path;
  std::vector<PlotMetric> metrics;
};

// The pictures that a run's folder holds: loss.svg, loss.png, perplexity.svg, perplexity.png.
std::vector<PictureFile> RunPictures(const std::string& folder);

struct TextPlotStyle {
  int width = 100, height = 18;  // of the whole drawing, in columns and lines
  bool utf8 = true;              // braille and lines; else ASCII
  bool colour = false;           // ANSI colours
};

// The picture drawn with characters, ending in a newline.
std::string DrawPicture(const Picture& picture, const TextPlotStyle& style);

}  // namespace heed
