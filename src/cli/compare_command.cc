#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/plural.h"
#include "base/quote.h"
#include "cli/command.h"
#include "cli/json.h"
#include "report/format.h"
#include "report/run.h"
#include "report/summary.h"

namespace heed {
namespace {

nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::string Document(const std::vector<RunRecord>& runs) {
  using Json = nlohmann::ordered_json;
  Json settings = Json::object(), list = Json::array(), effects = Json::array();
  for (const Difference& d : DifferencesOf(runs)) settings[d.setting] = d.values;
  for (const RunRecord& run : runs) {
    const RunFigures f = FiguresOf(run);
    list.push_back({{"run", run.folder},
                    {"parameters", f.parameters},
                    {"cache_elements_per_position", f.cache_elements},
                    {"updates", f.updates},
                    {"tokens", f.tokens},
                    {"train_loss", f.train_loss},
                    {"val_loss", OrNull(f.val_loss)},
                    {"best_val_loss", OrNull(f.best_val_loss)},
                    {"best_iter", f.best_iter},
                    {"val_floor", OrNull(f.floor)},
                    {"tokens_per_second", f.tokens_per_second},
                    {"elapsed_s", f.elapsed_s}});
  }
  for (size_t i = 1; i < runs.size(); ++i) effects.push_back(EffectOf(runs[i], runs[0]));
  return DocumentText({{"settings", settings}, {"runs", list}, {"effects", effects}});
}

std::string Text(const std::vector<RunRecord>& runs, size_t width) {
  std::string text;
  const Table differences = DifferenceTable(runs);
  text += differences.rows.empty() ? "no setting differs\n" : TableText(differences, width);
  text += "\n" + TableText(FigureTable(runs), width) + "\n";
  for (size_t i = 1; i < runs.size(); ++i) {
    text += Wrap(Printable(EffectOf(runs[i], runs[0])), width - 2, 2) + "\n";
  }
  return text;
}

Result<Verdict> Run(Session& session, const std::vector<std::string>& folders) {
  if (folders.size() < 2) {
    return BadRequest("RUN RUN...",
                      fmt::format("{} folder{}", folders.size(), Plural(std::ssize(folders))),
                      "two runs or more");
  }
  std::vector<RunRecord> runs;
  for (const std::string& folder : folders) {
    HEED_ASSIGN(RunRecord run, ReadRun(folder));
    runs.push_back(std::move(run));
  }
  HEED_TRY(session.terminal.Document(Document(runs)));
  HEED_TRY(session.terminal.Say(Text(runs, session.terminal.text_width())));
  return Verdict::kDone;
}

}  // namespace

Command CompareCommand() {
  Command command;
  command.name = "compare";
  command.summary = "what differs between runs, and what that did";
  command.explanation =
      "Reads the settings and curves of runs: the settings that differ, the figures side by side, "
      "and for each run what it did beside the first, in loss, perplexity, speed and cache.";
  command.example = "heed compare runs/learned runs/rope\nheed compare runs/mha runs/gqa runs/mqa";
  command.declare = [](Options& options) -> CommandBody {
    auto folders = std::make_shared<std::vector<std::string>>();
    options.BindArguments("RUN RUN...", "folders of runs; the others are held against the first",
                          folders.get());
    return [folders](Session& session) { return Run(session, *folders); };
  };
  return command;
}

}  // namespace heed
