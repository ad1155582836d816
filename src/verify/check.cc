#include "verify/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "verify/checks.h"

namespace heed {
namespace {

// What is more is cut: the vocabulary always, blocks of a model that is still large then.
constexpr int64_t kMostVocabulary = 1024;
constexpr int64_t kMostParameters = 8 << 20;
constexpr int64_t kFewBlocks = 2;

struct Check {
  std::string_view name, tried, rules_out, look;
  Result<Finding> (*run)(Probe& probe);
};

constexpr Check kChecks[] = {
    {"shapes", "one pass: sizes of all tensors; finite logits",
     "axes moved or merged wrongly, weights that are damaged",
     "reshape and transpose around the heads; NaN in the weights", CheckShapes},
    {"eval_repeats", "two passes in eval on the same tokens",
     "chance in eval, which makes every other check meaningless",
     "the switch to eval; a functional dropout that is always given p", CheckEvalRepeats},
    {"row_sums", "attention over values that are all 1",
     "softmax along the wrong axis, weights dropped in eval",
     "the axis of softmax: it runs over keys", CheckRowSums},
    {"pattern", "weights of the model's own q and k, by definition",
     "a missing or wrong scale, mask, softmax or head map",
     "scores: q k / sqrt(head width), then mask, then softmax", CheckPattern},
    {"causality", "token t changed: logits before t, bit by bit",
     "a mask that is missing, shifted, transposed or behind softmax; heads mixed with positions",
     "the direction of the triangle; mask before softmax; merge by transpose", CheckCausality},
    {"causality_x100", "the same with queries times 100",
     "a mask of finite numbers that large scores overcome", "the fill of the mask: -inf, no number",
     CheckCausalityAtLargeScores},
    {"causality_layers", "the last token changed: every tensor before it",
     "a leak outside attention, as a norm over the sequence",
     "the first tensor that moved, and the axes of the layer that writes it",
     CheckCausalityOfLayers},
    {"rope_angles", "[1, 0] turned at every position: cosine and sine",
     "wrong frequencies or base, a constant angle, the wrong pairing",
     "exponent -2i / d of the base; position times frequency", CheckRopeAngles},
    {"rope_norm", "lengths of a vector before and after rotation",
     "two partners that turn by different angles; a scaling in place of a rotation",
     "pairs (i, i + d/2) or (2i, 2i + 1), and tables in the same layout", CheckRopeNorm},
    {"rope_relative", "a query and a key, both shifted by as much",
     "scores that depend on more than the distance",
     "q and k turned in the same sense, by their own positions", CheckRopeRelative},
    {"rope_90_degrees", "q = k = [1, 0], a quarter turn a step: 1, 0, -1",
     "a rotation that is none", "x cos - y sin, x sin + y cos", CheckRopeQuarterTurns},
    {"head_map", "values that name their key/value head",
     "tiled key/value heads; groups that are summed", "query head h reads h / (n_head / n_kv_head)",
     CheckHeadMap},
    {"cached", "token by token through a cache, against one pass",
     "positions or masks that forget the cache, keys written in the wrong place",
     "offsets of positions; mask aligned at the last key; length counted once a step", CheckCached},
    {"chunked", "in pieces through a cache, against one pass",
     "a mask aligned at the top left, or lost in a prompt behind a cache",
     "query i of a piece sees keys 0 to past + i", CheckChunked},
    {"positions", "the token behind a prompt of 2, as it is attended",
     "positions that restart behind a cache", "the next token's position is the cache's length",
     CheckPositionsAfterPrompt},
    {"padding", "the same text with more text behind it", "padding that earlier positions see",
     "the mask of keys, and norms or means over the sequence", CheckPadding},
    {"batch", "each sequence alone and in the batch", "sequences that see each other",
     "the batch axis in reshapes, norms and cache rows", CheckBatch},
    {"dropout_modes", "training and eval, twice each; where dropout acts",
     "dropout that is stored and never used, or used in eval",
     "which of the dropouts the forward pass calls, and its switch", CheckDropoutModes},
    {"dropout_mean", "the mean of what dropout keeps", "survivors not divided by 1 - p",
     "x / (1 - p) in training", CheckDropoutMean},
    {"gradient", "slope of the loss along each gradient",
     "a backward pass that does not belong to the forward pass",
     "the tensor named, then the layers behind it", CheckGradient},
    {"reference", "logits of the other kernels", "an operation that computes another function",
     "each operation against its definition", CheckReference},
    {"reference_gradient", "loss and gradients of the other kernels",
     "a loss or gradient of another function", "shift of the labels; backward of each operation",
     CheckReferenceGradient},
    {"start_loss", "loss of fresh weights, against ln(vocabulary)",
     "weights of the wrong size; a model that sees its targets",
     "normal 0.02, residual projections 0.02 / sqrt(2 n_layer)", CheckStartLoss},
    {"overfit", "one batch by heart: last loss / first loss",
     "a model that cannot learn; labels not shifted the same way twice",
     "gradients that reach every tensor; the learning rate", CheckOverfit},
    {"save_load", "written and read back", "weights lost, renamed or transposed in files",
     "names, the tied head, the order of axes", CheckSaveLoad},
    {"threads", "loss and gradients on 1, 2 and 3 threads", "sums whose order depends on threads",
     "reductions across threads", CheckThreads},
};

// The first tokens and blocks of a model that has many, or `whole` itself.
ModelConfig Cut(const ModelConfig& whole) {
  ModelConfig part = whole;
  part.vocab_size = std::min(whole.vocab_size, kMostVocabulary);
  if (ParameterCount(part) > kMostParameters) part.n_layer = std::min(whole.n_layer, kFewBlocks);
  return part;
}

std::string Scope(const ModelConfig& whole, const ModelConfig& part) {
  if (part == whole) return "the whole model";
  return fmt::format("cut to be quick: {} of {} blocks, {} of {} tokens", part.n_layer,
                     whole.n_layer, part.vocab_size, whole.vocab_size);
}

Result<std::unique_ptr<Gpt>> Cut(std::unique_ptr<Gpt> model) {
  const ModelConfig part = Cut(model->config());
  if (part == model->config()) return model;
  HEED_ASSIGN(auto cut, Gpt::Create(part, model->kernels()));
  // Rows of the vocabulary come first in their tensors; all other shapes are the same.
  for (Parameter& p : cut->parameters().all()) {
    std::copy_n(model->parameters().Find(p.name)->data, p.elements, p.data);
  }
  return cut;
}

// Moves every number, so that no gain is 1 and no bias 0 and scores spread by about 1.
void Stir(Gpt* model, uint64_t seed) {
  uint32_t tensor = 0;
  for (Parameter& p : model->parameters().all()) {
    const double scale =
        p.shape.size() == 1 ? 0.3 : 0.9 / std::sqrt(static_cast<double>(model->config().n_embd));
    const RandomKey key{seed, 1, kInitStream + tensor++};
    for (int64_t i = 0; i < p.elements; ++i) {
      p.data[i] += static_cast<float>(scale * RandomNormal(key, static_cast<uint64_t>(i)));
    }
  }
}

// A batch that no other size of the model equals.
int64_t BatchSize(const ModelConfig& c) {
  for (const int64_t B : {3, 5, 7}) {
    if (B != c.n_head && B != c.n_kv_head && B != c.head_dim) return B;
  }
  return 2;
}

CheckResult Judge(const Check& check, const Finding& finding) {
  CheckResult result{check.name, check.tried, check.rules_out, check.look};
  if (!finding.skipped.empty()) {
    result.value = result.bound = std::numeric_limits<double>::quiet_NaN();
    result.note = finding.skipped;
    return result;
  }
  result.value = finding.value;
  result.bound = finding.bound;
  result.note = finding.note;
  result.verdict = finding.value <= finding.bound ? CheckVerdict::kOk : CheckVerdict::kFailed;
  return result;
}

Result<CheckReport> RunChecks(Gpt* model, std::string scope, uint64_t seed, bool fresh,
                              const BeforeCheck& before_check) {
  const ModelConfig& c = model->config();
  if (c.n_layer == 0) {
    return BadRequest("model", std::string(NameOf(c.model)),
                      "a model with blocks, for the checks ask after attention");
  }
  const bool large = ParameterCount(c) > kMostParameters / 4;
  if (fresh) Stir(model, seed);
  // Beyond 64 positions and at no multiple of a tile's size.
  const int64_t T = std::min<int64_t>(large ? 13 : 67, c.block_size);
  Probe probe{*model, seed, fresh, large, BatchSize(c), T, {}};
  probe.tokens = probe.Tokens(probe.B * T, 0);
  CheckReport report;
  report.scope = fmt::format("{}, on {} sequences of {} random tokens", scope, probe.B, T);
  for (const Check& check : kChecks) {
    if (before_check) before_check(check.name, std::ssize(report.results), std::ssize(kChecks));
    HEED_ASSIGN(const Finding finding, check.run(probe));
    report.results.push_back(Judge(check, finding));
  }
  return report;
}

}  // namespace

std::span<const EnumName<CheckVerdict>> EnumNames(CheckVerdict) {
  static constexpr EnumName<CheckVerdict> kNames[] = {{CheckVerdict::kOk, "ok"},
                                                      {CheckVerdict::kFailed, "failed"},
                                                      {CheckVerdict::kSkipped, "skipped"}};
  return kNames;
}

const CheckResult* CheckReport::FirstFailed() const {
  for (const CheckResult& result : results) {
    if (result.verdict == CheckVerdict::kFailed) return &result;
  }
  return nullptr;
}

Result<CheckReport> CheckModel(std::unique_ptr<Gpt> model, uint64_t seed,
                               const BeforeCheck& before_check) {
  const ModelConfig whole = model->config();
  HEED_ASSIGN(model, Cut(std::move(model)));
  return RunChecks(model.get(), Scope(whole, model->config()), seed, /*fresh=*/false, before_check);
}

Result<CheckReport> CheckFreshModel(const ModelConfig& config, const Kernels& kernels,
                                    uint64_t seed, const BeforeCheck& before_check) {
  ModelConfig whole = config;
  HEED_TRY(whole.Resolve());
  HEED_ASSIGN(const auto model, Gpt::Create(Cut(whole), kernels));
  model->Initialize(seed);
  return RunChecks(model.get(), Scope(whole, model->config()), seed, /*fresh=*/true, before_check);
}

}  // namespace heed
