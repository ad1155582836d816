#include "verify/diagnose/model_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/folder.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/model_case.h"
#include "verify/diagnose/model_faults.h"
#include "verify/diagnose/model_replay.h"
#include "verify/diagnose/model_screen.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

// How many single faults may be paired with all others: those that take some ten seconds.
size_t Partners(const Gpt& model, const ModelCase& c, size_t faults) {
  constexpr double kBudget = 4e10;  // multiply-adds
  constexpr double kMost = 40;
  const double rows = static_cast<double>(c.input.B * c.input.T) * (c.input.n_decode > 0 ? 3 : 1);
  const double replay = rows * static_cast<double>(model.parameters().elements());
  return static_cast<size_t>(
      std::clamp(kBudget / (replay * static_cast<double>(faults)), 1.0, kMost));
}

std::vector<Reading<ModelRecipe>> Readings(const ModelCase& c) {
  std::vector<Reading<ModelRecipe>> readings = {{{}, c.right}};
  if (c.input.n_decode <= 1) return readings;
  readings[0].names["decode_logits"] = "one chunk";
  readings.push_back(readings[0]);
  readings[1].names["decode_logits"] = "one position at a time";
  readings[1].choices.decode_in_steps = true;
  return readings;
}

// How far their logits [rows, V] lie from every product of the hidden states [rows, C] with some
// head: by Gram-Schmidt, what is left of each column of the logits behind the columns of the
// states. Infinite where there are too few rows for this to say anything: of any numbers at all,
// C of them fit as many rows, and sqrt(1 - C / rows) is left of more.
double ResidualOfAnyHead(std::vector<double> hidden, std::vector<double> logits, int64_t rows,
                         double floor) {
  const auto C = static_cast<int64_t>(hidden.size()) / rows;
  const auto V = static_cast<int64_t>(logits.size()) / rows;
  constexpr int64_t kSpareRows = 4;
  const double of_anything = std::sqrt(1 - static_cast<double>(C) / static_cast<double>(rows));
  if (rows < C + kSpareRows || !(of_anything > 20 * floor)) {
    return std::numeric_limits<double>::infinity();
  }
  double before = 0, after = 0;
  for (const double z : logits) before += z * z;
  // Takes the part along hidden's column c out of column j of m [rows, n].
  const auto remove = [&](int64_t c, std::vector<double>* m, int64_t n, int64_t j) {
    double dot = 0;
    for (int64_t r = 0; r < rows; ++r) dot += hidden[r * C + c] * (*m)[r * n + j];
    for (int64_t r = 0; r < rows; ++r) (*m)[r * n + j] -= dot * hidden[r * C + c];
  };
  for (int64_t c = 0; c < C; ++c) {
    double norm = 0;
    for (int64_t r = 0; r < rows; ++r) norm += hidden[r * C + c] * hidden[r * C + c];
    if (norm == 0) continue;
    for (int64_t r = 0; r < rows; ++r) hidden[r * C + c] /= std::sqrt(norm);
    for (int64_t j = c + 1; j < C; ++j) remove(c, &hidden, C, j);
    for (int64_t j = 0; j < V; ++j) remove(c, &logits, V, j);
  }
  for (const double z : logits) after += z * z;
  return std::sqrt(after / before);
}

// Whether the right last hidden states with another head make their logits.
void TryAnyHead(Gpt* model, const ModelCase& c, const NoiseFloor& floor, Diagnosis* diagnosis) {
  if (c.padded || c.input.n_decode > 0) return;
  ModelInput input = c.input;
  input.taps = {"ln_f"};
  const Outputs right = ModelReplay(model, std::move(input)).Run(c.right);
  const std::vector<double>& logits = c.theirs[c.input.taps.size()].values;
  if (const auto factor = FactorBetween(logits, right[1], floor.arithmetic)) {
    diagnosis->seen.push_back(
        fmt::format("logits are the right ones times {:.6g}: a factor that logit_scale does not "
                    "state",
                    *factor));
    return;
  }
  const double residual =
      ResidualOfAnyHead(right[0], logits, c.input.B * c.input.T, floor.arithmetic);
  if (!(residual <= floor.arithmetic)) return;
  diagnosis->verdict = DiagnosisVerdict::kFault;
  diagnosis->explanations = {{{"head_untied"}, residual, "a head that the folder does not have"}};
}

}  // namespace

Result<Diagnosis> DiagnoseModel(const TensorFile& file, const std::string& where,
                                const SettingTexts& given, const std::string& model_folder) {
  Dump dump(file, where, given);
  HEED_ASSIGN(LoadedModel loaded, LoadModel(model_folder, SimdKernels()));
  Gpt& model = *loaded.model;
  HEED_ASSIGN(const ModelCase c, ReadModelCase(&dump, model.config()));
  ModelReplay replay(&model, c.input);
  Replayer<ModelRecipe> replayer;
  replayer.theirs = c.theirs;
  replayer.rows = c.input.taps.size();
  const Observed& logits = c.theirs[replayer.rows];
  replayer.floor = NoiseFloorOf(logits.dtype, dump.coarsest());
  // Rounding of the layers adds up like a random walk.
  replayer.floor.arithmetic *= 1 + std::sqrt(static_cast<double>(model.config().n_layer));
  replayer.replay = [&replay](const ModelRecipe& recipe) { return replay.Run(recipe); };
  replayer.at_least = BoundsOf(&replay, c.input, logits.values, c.right);
  replayer.deviations = ModelDeviations(model.config(), c);
  replayer.most_faults = 2;
  replayer.most_partners = Partners(model, c, replayer.deviations.size());
  const std::vector<Reading<ModelRecipe>> readings = Readings(c);
  Diagnosis diagnosis = FaultSearch<ModelRecipe>(replayer, readings).Run();
  if (diagnosis.verdict == DiagnosisVerdict::kUnexplained) {
    HEED_TRY(dump.CheckFinite(logits));
    TryAnyHead(&model, c, replayer.floor, &diagnosis);
  }
  return diagnosis;
}

std::optional<FaultView> ViewModelFault(Gpt* model, ModelInput input, const std::string& id) {
  ModelCase c;
  c.input = std::move(input);
  c.theirs = {{"logits", {c.input.B, c.input.T, model->config().vocab_size}}};
  ModelReplay replay(model, c.input);
  Replayer<ModelRecipe> replayer;
  replayer.theirs = c.theirs;
  replayer.replay = [&replay](const ModelRecipe& recipe) { return replay.Run(recipe); };
  replayer.deviations = ModelDeviations(model->config(), c);
  return ViewOf(replayer, RightRecipe(model->config()), id);
}

}  // namespace heed
