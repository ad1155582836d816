#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>

#include "report/format.h"

namespace heed {
namespace {

constexpr std::array<EnumName<PlotMetric>, 2> kMetricNames{
    {{PlotMetric::kLoss, "loss"}, {PlotMetric::kPerplexity, "perplexity"}}};
constexpr std::array<EnumName<PlotX>, 2> kXNames{
    {{PlotX::kIterations, "iterations"}, {PlotX::kTokens, "tokens"}}};

constexpr double kLogFactor = 8;

std::string TickLabel(double at) {
  for (const auto& [unit, suffix] : {std::pair{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (std::abs(at) >= unit) return fmt::format("{:.6g}{}", at / unit, suffix);
  }
  return fmt::format("{:.6g}", at);
}

void AddPoint(Series& series, double x, double y) {
  if (!std::isfinite(y)) return;
  series.x.push_back(x);
  series.y.push_back(y);
}

// The range from low to high with a share of it added at both ends.
std::pair<double, double> Padded(double low, double high, double share) {
  const double pad = high > low ? share * (high - low) : std::max(0.5, 0.05 * std::abs(low));
  return {low - pad, high + pad};
}

// The names of runs without the folders that they lie in, where that tells them apart.
std::vector<std::string> ShownNames(std::span<const RunCurve> runs) {
  std::vector<std::string> whole, last;
  for (const RunCurve& run : runs) {
    std::filesystem::path path(run.name);
    if (!path.has_filename() || path.filename() == "metrics.jsonl") path = path.parent_path();
    const std::string name = path.filename();
    whole.push_back(run.name);
    last.push_back(name.empty() ? run.name : name);
  }
  return std::set(last.begin(), last.end()).size() == runs.size() ? last : whole;
}

}  // namespace

std::span<const EnumName<PlotMetric>> EnumNames(PlotMetric) { return kMetricNames; }
std::span<const EnumName<PlotX>> EnumNames(PlotX) { return kXNames; }

std::vector<double> Smoothed(std::span<const double> y) {
  const size_t n = y.size(), radius = n / 50;
  std::vector<double> out(y.begin(), y.end());
  if (radius == 0) return out;
  std::vector<double> sums(n + 1);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + y[i];
  for (size_t i = 0; i < n; ++i) {
    // As many before as after where losses fall fast, at the start; all there are at the end.
    const size_t first = i - std::min(radius, i), last = std::min(n - 1, i + std::min(radius, i));
    out[i] = (sums[last + 1] - sums[first]) / static_cast<double>(last - first + 1);
  }
  return out;
}

Picture MakePicture(std::span<const RunCurve> runs, const PlotRequest& request) {
  const bool perplexity = request.metric == PlotMetric::kPerplexity;
  const auto shown = [&](double loss) { return perplexity ? std::exp(loss) : loss; };
  Picture picture;
  picture.y_label = perplexity ? "perplexity per token" : "nats per token";
  picture.x_label = NameOf(request.x);
  picture.runs = runs.size();
  if (request.floor) picture.floor = shown(*request.floor);
  picture.floor_label = request.floor_label;
  const std::vector<std::string> names = ShownNames(runs);
  for (size_t run = 0; run < runs.size(); ++run) {
    const std::string prefix = runs.size() == 1 ? "" : names[run] + " ";
    Series losses{"", SeriesKind::kRaw, run, {}, {}};
    Series held_out{prefix + "held-out", SeriesKind::kHeldOut, run, {}, {}};
    for (const MetricsRow& row : runs[run].rows) {
      const auto x = static_cast<double>(request.x == PlotX::kTokens ? row.tokens : row.iter);
      AddPoint(losses, x, row.train_loss);
      if (row.val_loss) AddPoint(held_out, x, *row.val_loss);
    }
    Series raw{"", SeriesKind::kRaw, run, {}, {}};
    const std::vector<double> means = Smoothed(losses.y);
    const bool bare = means == losses.y;  // too few for means
    Series smoothed{
        prefix + (bare ? "training" : "training (mean)"), SeriesKind::kSmoothed, run, {}, {}};
    for (size_t i = 0; i < means.size(); ++i) {
      AddPoint(raw, losses.x[i], shown(losses.y[i]));
      AddPoint(smoothed, losses.x[i], shown(means[i]));
    }
    for (double& y : held_out.y) y = shown(y);
    if (!bare) picture.series.push_back(std::move(raw));
    if (!smoothed.x.empty()) picture.series.push_back(std::move(smoothed));
    if (!held_out.x.empty()) picture.series.push_back(std::move(held_out));
  }
  const bool measured = std::ranges::count(picture.series, SeriesKind::kHeldOut, &Series::kind) > 0;
  picture.title = fmt::format("{} {}{}", measured ? "Training and held-out" : "Training",
                              NameOf(request.metric), runs.size() == 1 ? " of " + names[0] : "");
  // Held-out points and means lie on top of the faint raw lines of every run.
  std::stable_sort(picture.series.begin(), picture.series.end(),
                   [](const Series& a, const Series& b) { return a.kind < b.kind; });
  if (perplexity) {
    double low = HUGE_VAL, high = 0;
    for (const Series& series : picture.series) {
      for (const double y : series.y) low = std::min(low, y), high = std::max(high, y);
    }
    picture.log_y = high > kLogFactor * low;
  }
  return picture;
}

Frame FrameOf(const Picture& picture) {
  Frame frame{HUGE_VAL, -HUGE_VAL, HUGE_VAL, -HUGE_VAL};
  for (const Series& series : picture.series) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      frame.left = std::min(frame.left, series.x[i]);
      frame.right = std::max(frame.right, series.x[i]);
      frame.bottom = std::min(frame.bottom, series.y[i]);
      frame.top = std::max(frame.top, series.y[i]);
    }
  }
  if (picture.floor) {
    frame.bottom = std::min(frame.bottom, *picture.floor);
    frame.top = std::max(frame.top, *picture.floor);
  }
  if (frame.right <= frame.left)
    std::tie(frame.left, frame.right) = Padded(frame.left, frame.left, 0);
  if (picture.log_y) {
    const auto [low, high] = Padded(std::log(frame.bottom), std::log(frame.top), 0.06);
    frame.bottom = std::exp(low);
    frame.top = std::exp(high);
  } else {
    std::tie(frame.bottom, frame.top) = Padded(frame.bottom, frame.top, 0.06);
  }
  return frame;
}

std::vector<Tick> Ticks(double low, double high, int most, bool log) {
  std::vector<Tick> ticks;
  if (log) {
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = static_cast<int>(std::ceil(std::log10(high)));
    // 1, 2, 5 of each decade while they fit, then decades alone, then every second one, ...
    const bool fine = (std::log10(high) - std::log10(low)) * 3 <= most;
    const int step = std::max(1, (last - first + most - 1) / std::max(1, most));
    for (int decade = first; decade <= last; decade += step) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double at = digit * std::pow(10, decade);
        if (at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9)) {
          ticks.push_back({at, TickLabel(at)});
        }
        if (!fine) break;
      }
    }
    return ticks;
  }
  const double raw = (high - low) / std::max(1, most);
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * decade;
  for (const double digit : {1.0, 2.0, 2.5, 5.0}) {
    if (digit * decade >= raw * (1 - 1e-9)) {
      step = digit * decade;
      break;
    }
  }
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) {
    const double at = static_cast<double>(i) * step;
    ticks.push_back({at, TickLabel(at)});
  }
  return ticks;
}

std::vector<PictureFile> RunPictures(const std::string& folder) {
  std::vector<PictureFile> files;
  for (const PlotMetric metric : {PlotMetric::kLoss, PlotMetric::kPerplexity}) {
    for (const char* ending : {".svg", ".png"}) {
      const std::filesystem::path name = std::string(NameOf(metric)) + ending;
      files.push_back({(std::filesystem::path(folder) / name).string(), {metric}});
    }
  }
  return files;
}

}  // namespace heed
