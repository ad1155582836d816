#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fields_text.h"
#include "base/plural.h"
#include "base/quote.h"
#include "cli/command.h"
#include "model/load.h"
#include "report/format.h"
#include "train/presets.h"
#include "verify/check.h"
#include "verify/planted.h"

namespace heed {
namespace {

struct CheckInputs {
  std::string preset;
  std::string plant;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("preset", self.preset, "named size with fresh weights, in place of a model");
    visit("plant", self.plant, "plant a known fault first, to see which checks find it");
  }
};

struct CheckRequest {
  CheckInputs inputs;
  ModelConfig model;
  std::vector<std::string> arguments;
};

nlohmann::ordered_json Document(const CheckReport& report) {
  // A number that is not finite is null.
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  const CheckResult* failed = report.FirstFailed();
  for (const CheckResult& r : report.results) {
    nlohmann::ordered_json check = {{"name", r.name},   {"verdict", NameOf(r.verdict)},
                                    {"value", r.value}, {"bound", r.bound},
                                    {"tried", r.tried}, {"rules_out", r.rules_out}};
    if (!r.note.empty()) check["note"] = r.note;
    if (&r == failed) check["look"] = r.look;
    checks.push_back(std::move(check));
  }
  return {{"verdict", failed == nullptr ? "ok" : "failed"},
          {"scope", report.scope},
          {"checks", std::move(checks)}};
}

// A line of figures for each check, then what it rules out. Of those that failed only the first is
// explained: the others may show nothing but its traces.
std::string Table(const CheckReport& report, size_t width) {
  constexpr size_t kIndent = 9, kFigures = 51, kLeastBeside = 80;
  const bool beside = width >= kLeastBeside;  // what was tried, and else below the figures
  const bool narrow = width < kFigures;       // figures below the name
  const auto columns = [&](std::string_view verdict, std::string_view check,
                           const std::string& value, const std::string& bound) {
    return narrow
               ? fmt::format("{:<8} {}\n{:>{}} {:>10}", verdict, check, value, kIndent + 10, bound)
               : fmt::format("{:<8} {:<18} {:>10} {:>10}", verdict, check, value, bound);
  };
  std::string text = Wrap(report.scope, width, 0) + "\n\n";
  text += columns("verdict", "check", "value", "bound") + (beside ? "  what was tried\n" : "\n");
  const CheckResult* failed = report.FirstFailed();
  const auto line = [&](const std::string& words) {
    text += std::string(kIndent, ' ') + Wrap(words, width - kIndent, kIndent) + "\n";
  };
  for (const CheckResult& r : report.results) {
    const bool skipped = r.verdict == CheckVerdict::kSkipped;
    std::string figures = columns(NameOf(r.verdict), r.name, skipped ? "" : FormatFigure(r.value),
                                  skipped ? "" : FormatFigure(r.bound));
    if (beside) {
      text += figures + "  " + Wrap(r.tried, width - kFigures, kFigures) + "\n";
    } else {
      figures.erase(figures.find_last_not_of(" \n") + 1);
      text += figures + "\n";
      line("tried: " + std::string(r.tried));
    }
    if (skipped) {
      line("not applicable: " + r.note);
      continue;
    }
    const bool repeats = r.verdict == CheckVerdict::kFailed && &r != failed;
    if (repeats) {
      line(fmt::format("may only follow from {}", failed->name));
    } else {
      const bool out = r.verdict == CheckVerdict::kOk;
      line((out ? "rules out: " : "does not rule out: ") + std::string(r.rules_out));
    }
    if (!r.note.empty()) line("seen: " + r.note);
    if (&r == failed) line("LOOK AT: " + std::string(r.look));
  }
  return text;
}

std::string VerdictLine(const CheckReport& report, size_t width) {
  int counts[3] = {};
  for (const CheckResult& r : report.results) ++counts[static_cast<int>(r.verdict)];
  const CheckResult* failed = report.FirstFailed();
  const std::string skipped = counts[2] == 0 ? "" : fmt::format(", {} not applicable", counts[2]);
  if (failed == nullptr) {
    return Wrap(fmt::format("ok: {} check{} passed{}", counts[0], Plural(counts[0]), skipped),
                width, 0) +
           "\n";
  }
  const std::string verdict = fmt::format("failed: {} of {} checks{}; begin with {}:", counts[1],
                                          counts[0] + counts[1], skipped, failed->name);
  return Wrap(verdict, width, 0) + "\n  " + Wrap(std::string(failed->look), width - 2, 2) + "\n";
}

Result<CheckReport> Check(Session& session, CheckRequest& request, const Kernels& kernels) {
  const CheckInputs& inputs = request.inputs;
  const auto seed = static_cast<uint64_t>(session.globals.seed);
  std::optional<Progress> progress;
  const auto before_check = [&](std::string_view next, int64_t done, int64_t total) {
    if (!session.terminal.err_is_terminal()) return;
    if (!progress) progress.emplace(session.terminal, "checking", "", total);
    progress->Update(done, {{"now", std::string(next)}});
  };
  const auto plantable = [&](const ModelConfig& model) {
    return inputs.plant.empty() || model.block_size >= 2
               ? Status()
               : BadRequest("--plant", "a model of one position", "a block_size of at least 2");
  };
  if (request.arguments.size() + !inputs.preset.empty() != 1) {
    return BadRequest("MODEL, --preset",
                      fmt::format("{} models", request.arguments.size() + !inputs.preset.empty()),
                      "one model's folder, or --preset NAME");
  }
  if (inputs.preset.empty()) {
    constexpr std::string_view kAllowed[] = {"preset",  "plant", "json",     "quiet",
                                             "threads", "seed",  "reference"};
    if (const std::string other = session.options.FirstGivenBut(kAllowed); !other.empty()) {
      return BadRequest(other, "a model's folder beside it", "--preset, for the folder has sizes");
    }
    HEED_ASSIGN(LoadedModel loaded, LoadModel(request.arguments[0], kernels));
    HEED_TRY(plantable(loaded.model->config()));
    return CheckModel(std::move(loaded.model), seed, before_check);
  }
  TrainSettings unused;
  const ModelKind kind = request.model.model;
  HEED_TRY(ApplyPreset(inputs.preset, &request.model, &unused));
  ApplyKind(kind, &request.model);
  HEED_TRY(session.options.Apply());
  HEED_TRY(plantable(request.model));
  return CheckFreshModel(request.model, kernels, seed, before_check);
}

Result<Verdict> Run(Session& session, CheckRequest& request) {
  const CheckInputs& inputs = request.inputs;
  Kernels kernels = session.globals.reference ? ReferenceKernels() : SimdKernels();
  if (!inputs.plant.empty()) {
    HEED_ASSIGN(kernels, PlantedKernels(inputs.plant, kernels));
  }
  HEED_ASSIGN(const CheckReport report, Check(session, request, kernels));
  HEED_TRY(session.terminal.Document(
      Document(report).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  const size_t width = session.terminal.text_width();
  HEED_TRY(session.terminal.Say(Table(report, width) + "\n" + VerdictLine(report, width)));
  return report.FirstFailed() == nullptr ? Verdict::kDone : Verdict::kNegative;
}

}  // namespace

Command CheckCommand() {
  Command command;
  command.name = "check";
  command.summary = "the diagnostic tests of a model, each with what it rules out";
  command.explanation =
      "Asks a model one question after another: shapes, eval, attention's weights, causality, "
      "rotation, grouped heads, the cache, batches, dropout, gradients, training, files, threads. "
      "Each answer is a number and a bound, and says what it rules out; the first that fails says "
      "where to look, for it may explain the later ones. --preset checks fresh weights, of sizes "
      "that model options may change. Large models are cut first, and the report says to what. "
      "--plant NAME plants a fault that others have made, to show which checks find it; a name "
      "that is unknown lists all.";
  command.example =
      "heed check runs/first\n"
      "heed check --preset gpt-nano --position rope --n-head 6 --n-kv-head 2\n"
      "heed check --preset pico --plant mask_shifted_by_one";
  command.takes_reference = true;
  command.declare = [](Options& options) -> CommandBody {
    auto request = std::make_shared<CheckRequest>();
    options.BindArguments("[MODEL]", "a model: its folder, .gguf or .bin", &request->arguments);
    options.Bind("Check", request->inputs);
    options.Bind("Model", request->model);
    return [request](Session& session) { return Run(session, *request); };
  };
  return command;
}

}  // namespace heed
