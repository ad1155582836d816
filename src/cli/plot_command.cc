#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "cli/command.h"
#include "io/file.h"
#include "io/metrics.h"
#include "report/plot.h"

namespace heed {
namespace {

struct PlotSettings {
  std::vector<std::string> runs;
  std::vector<std::string> out;
  PlotMetric metric = PlotMetric::kLoss;
  PlotX x = PlotX::kIterations;
  double floor = std::numeric_limits<double>::quiet_NaN();

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("out", self.out, "picture to write, FILE.svg or FILE.png");
    visit("metric", self.metric, "one of both curves; loss above perplexity if not given");
    visit("x", self.x, "the horizontal axis");
    visit("floor", self.floor,
          "a loss to draw as a line, in nats per token; the text's own if known");
  }
};

// A run is its folder or its metrics.jsonl.
std::filesystem::path MetricsPath(const std::string& run) {
  std::error_code error;
  return std::filesystem::is_directory(run, error) ? std::filesystem::path(run) / "metrics.jsonl"
                                                   : std::filesystem::path(run);
}

std::vector<PictureFile> Outputs(const PlotSettings& settings,
                                 const std::vector<PlotMetric>& metrics) {
  std::vector<PictureFile> outputs;
  for (const std::string& path : settings.out) outputs.push_back({path, metrics});
  if (!outputs.empty() || settings.runs.size() != 1) return outputs;
  return RunPictures(MetricsPath(settings.runs[0]).parent_path().string());
}

Status CheckNames(const std::vector<PictureFile>& outputs) {
  for (const PictureFile& output : outputs) {
    if (!output.path.ends_with(".svg") && !output.path.ends_with(".png")) {
      return BadRequest("--out", output.path, "a name that ends in .svg or .png");
    }
  }
  return {};
}

// {"files":[..],"runs":[{"run","points","iter","tokens","train_loss",...}]}
std::string Document(const std::vector<RunCurve>& runs, const std::vector<PictureFile>& outputs) {
  std::vector<std::string> files;
  for (const PictureFile& output : outputs) files.push_back(output.path);
  std::string out;
  for (const RunCurve& run : runs) {
    const MetricsRow& last = run.rows.back();
    std::optional<double> val_loss, best;
    for (const MetricsRow& row : run.rows) {
      if (!row.val_loss) continue;
      val_loss = row.val_loss;
      if (!best || *row.val_loss < *best) best = row.val_loss;
    }
    const auto number = [](std::optional<double> x) { return x ? JsonText(*x) : "null"; };
    out += (out.empty() ? "" : ",") + ("{\"run\":" + JsonText(run.name)) +
           ",\"points\":" + JsonText(static_cast<int64_t>(run.rows.size())) +
           ",\"iter\":" + JsonText(last.iter) + ",\"tokens\":" + JsonText(last.tokens) +
           ",\"train_loss\":" + JsonText(last.train_loss) +
           ",\"perplexity\":" + JsonText(last.perplexity) + ",\"val_loss\":" + number(val_loss) +
           ",\"best_val_loss\":" + number(best) + "}";
  }
  return "{\"files\":" + JsonText(files) + ",\"runs\":[" + out + "]}";
}

Result<std::vector<RunCurve>> ReadRuns(const std::vector<std::string>& names) {
  std::vector<RunCurve> runs;
  for (const std::string& name : names) {
    const std::string path = MetricsPath(name).string();
    HEED_ASSIGN(std::vector<MetricsRow> rows, ReadMetrics(path));
    if (rows.empty()) {
      return Fail(ErrorKind::kFormat, path, "no logged iteration", "one or more",
                  "let the run train further");
    }
    runs.push_back({name, std::move(rows)});
  }
  return runs;
}

// The floor that was asked for, or the one that all runs share.
std::optional<double> FloorOf(const PlotSettings& settings, const std::vector<RunCurve>& runs) {
  if (!std::isnan(settings.floor)) return settings.floor;
  std::optional<double> shared;
  for (const RunCurve& run : runs) {
    std::optional<double> floor;
    for (const MetricsRow& row : run.rows) {
      if (row.val_floor) floor = row.val_floor;
    }
    if (!floor || (shared && *shared != *floor)) return std::nullopt;
    shared = floor;
  }
  return shared;
}

Result<Verdict> RunPlot(const PlotSettings& settings, Session& session) {
  if (settings.runs.empty()) {
    return BadRequest("heed plot", "no run", "the folder of one",
                      "for example heed plot runs/demo");
  }
  std::vector<PlotMetric> metrics = {PlotMetric::kLoss, PlotMetric::kPerplexity};
  if (session.options.Given("metric")) metrics = {settings.metric};
  const std::vector<PictureFile> outputs = Outputs(settings, metrics);
  HEED_TRY(CheckNames(outputs));
  HEED_ASSIGN(const std::vector<RunCurve> runs, ReadRuns(settings.runs));
  const std::optional<double> floor = FloorOf(settings, runs);
  const auto picture = [&](PlotMetric metric) {
    return MakePicture(runs, {metric, settings.x, floor});
  };

  Terminal& terminal = session.terminal;
  TextPlotStyle style{.utf8 = LocaleIsUtf8(), .colour = terminal.out_has_colour()};
  if (terminal.out_is_terminal()) style.width = std::min(style.width, terminal.width());
  for (const PlotMetric metric : metrics) {
    HEED_TRY(terminal.Say(DrawPicture(picture(metric), style)));
  }
  for (const PictureFile& output : outputs) {
    HEED_TRY(CheckNothingAt(output.path, session.globals.overwrite));
  }
  for (const PictureFile& output : outputs) {
    std::vector<Picture> panels;
    for (const PlotMetric metric : output.metrics) panels.push_back(picture(metric));
    HEED_TRY(WritePictures(panels, output.path, session.globals.overwrite));
    terminal.Note("wrote " + output.path);
  }
  if (outputs.empty()) terminal.Note("a picture of several runs needs a name: --out FILE.svg");
  HEED_TRY(terminal.Document(Document(runs, outputs)));
  return Verdict::kDone;
}

}  // namespace

Command PlotCommand() {
  return {
      .name = "plot",
      .summary = "draw the loss and perplexity of runs",
      .explanation =
          "Shows the curves of one run or several in the terminal. For one run it also writes "
          "loss.svg, loss.png, perplexity.svg and perplexity.png into the run's folder; with --out "
          "it writes the named pictures instead, loss above perplexity. Training loss is drawn "
          "faint as logged and bold as a moving mean; held-out loss has a point wherever it was "
          "measured.",
      .example =
          "heed plot runs/demo --overwrite\nheed plot runs/one runs/two --out both.svg --x tokens",
      .takes_overwrite = true,
      .declare = [](Options& options) -> CommandBody {
        auto settings = std::make_shared<PlotSettings>();
        options.BindArguments("RUN...", "folders of runs, or their metrics.jsonl", &settings->runs);
        options.Bind("Options", *settings);
        return [settings](Session& session) { return RunPlot(*settings, session); };
      },
  };
}

}  // namespace heed
