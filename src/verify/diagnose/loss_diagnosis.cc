#include "verify/diagnose/loss_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

constexpr FaultKind kFaults[] = {
    {"labels_not_shifted", "each position is scored on the token that it has just read",
     "shift the labels by one, once",
     "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
     "const int32_t target = tokens[t + 1];",
     "the loss equals that of the labels at t in place of t + 1"},
    {"labels_shifted_twice", "each position is scored on the token after the next",
     "shift in the data or in the loss, not in both",
     "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
     "const int32_t target = tokens[t + 1];", "the loss equals that of the labels at t + 2"},
    {"ignored_targets_counted", "positions without a target count in the loss or in its mean",
     "divide the sum by the number of targets that count",
     "loss = F.cross_entropy(logits, targets, ignore_index=-1)",
     "if (target < 0) continue; sum -= log_p[target]; ++count;",
     "add padding: the loss must not move"},
    {"accumulation_token_mean", "a mean of means of rows with unequal numbers of targets",
     "sum over all targets, divide once by their number",
     "loss = losses.sum() / (targets >= 0).sum()", "loss = sum_of_all / count_of_all;",
     "rows with unequal numbers of targets; equal numbers hide it"},
    {"perplexity_averaging", "a mean of exponentials in place of the exponential of the mean",
     "average the loss over all tokens, then take the exponential",
     "perplexity = torch.exp(total_nll / total_tokens)", "perplexity = std::exp(sum / count);",
     "two batches of different losses: the mean of exponentials is larger"},
    {"stop_token_ignored", "targets that are the stop token count as padding",
     "ignore by position, not by the token's number, or pad with a number of its own",
     "targets[~attention_mask] = -1  # not targets[targets == eos]",
     "if (is_padding[t]) continue;  // not: target == eos",
     "leave out every target with one number: the loss is theirs"},
    {"loss_not_averaged", "the sum of the losses in place of their mean",
     "divide by the number of targets",
     "loss = F.cross_entropy(logits, targets, "
     "reduction='mean')",
     "loss = sum / count;", "twice the data doubles it"},
    {"loss_in_bits", "the logarithm to base 2 where nats are meant", "use the natural logarithm",
     "nll = -torch.log(p)", "sum -= std::log(p);", "the ratio is 1 / ln 2 = 1.4427"},
    {"loss_softmax_twice", "probabilities are passed where logits are expected",
     "give the logits: cross-entropy applies the softmax itself",
     "loss = F.cross_entropy(logits, targets)", "LogSoftmax(logits);",
     "the loss stays near ln(V), whatever the model knows"},
};

// What an ignored position adds.
enum class Ignored {
  kLeftOut,
  kInMean,      // nothing, but it counts
  kFirstToken,  // as if its target were 0
  kLastToken,   // as an index of -1 does in Python
};
enum class Mean {
  kTokens,
  kBatches,         // of the means of batches
  kSumOfBatches,    // their sum
  kExponentials,    // of the batches' perplexities
  kSum,             // none
  kSumByRows,       // the sum over the number of rows
  kFirstAlsoCounts  // each row counts one target more than it has
};
// What lies behind a row's end when labels are shifted over it; or what is cut off, although
// nothing lies behind.
enum class Edge { kCut, kNextRow, kSameRow, kLastCut, kFirstCut };

struct Choices {
  int64_t shift = 0;  // of the labels, from those given
  Edge edge = Edge::kCut;
  Ignored ignored = Ignored::kLeftOut;
  Mean mean = Mean::kTokens;
  int64_t batch_rows = 1;
  bool as_perplexity = false;  // although a loss was asked for
  int64_t left_out = -1;       // a label that counts as padding
  bool bits = false;
  bool softmax_twice = false;
};

struct LossCase {
  int64_t B = 1, T = 1, V = 1;
  std::vector<double> log_p;        // [B, T, V]
  std::vector<double> log_p_twice;  // the same of the probabilities as logits
  std::vector<int64_t> labels;      // [B, T]
  Observed reported;
  bool is_perplexity = false;
  int64_t shift = 0;  // 1 where labels are the tokens themselves
};

std::vector<double> LogSoftmax(const std::vector<double>& logits, int64_t V) {
  std::vector<double> log_p(logits.size());
  for (size_t row = 0; row < logits.size(); row += V) {
    const double top = *std::max_element(&logits[row], &logits[row] + V);
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(logits[row + i] - top);
    for (int64_t i = 0; i < V; ++i) log_p[row + i] = logits[row + i] - top - std::log(sum);
  }
  return log_p;
}

constexpr int64_t kNoLabel = std::numeric_limits<int64_t>::min();

// The label of position t, or kNoLabel where there is none to score.
int64_t LabelOf(const Choices& choices, const LossCase& c, int64_t b, int64_t t) {
  const int64_t at = t + choices.shift;
  if (choices.edge == Edge::kLastCut && t == c.T - 1) return kNoLabel;
  if (choices.edge == Edge::kFirstCut && t == 0) return kNoLabel;
  if (at >= 0 && at < c.T) return c.labels[b * c.T + at];
  if (choices.edge != Edge::kNextRow && choices.edge != Edge::kSameRow) return kNoLabel;
  const int64_t size = choices.edge == Edge::kSameRow ? c.T : c.B * c.T;
  const int64_t first = choices.edge == Edge::kSameRow ? b * c.T : 0;
  const int64_t flat = b * c.T + at - first;
  // A flat shift ends with the last row.
  if (choices.edge == Edge::kNextRow && (flat < 0 || flat >= size)) return kNoLabel;
  return c.labels[first + (flat + size) % size];
}

struct Sum {
  double nll = 0;
  int64_t count = 0;

  double mean() const { return nll / static_cast<double>(count); }
};

Sum RowSum(const Choices& choices, const LossCase& c, int64_t b) {
  const std::vector<double>& log_p = choices.softmax_twice ? c.log_p_twice : c.log_p;
  Sum sum;
  for (int64_t t = 0; t < c.T; ++t) {
    int64_t label = LabelOf(choices, c, b, t);
    if (label == kNoLabel || (label >= 0 && label == choices.left_out)) continue;
    if (label < 0) {
      if (choices.ignored == Ignored::kLeftOut) continue;
      ++sum.count;
      if (choices.ignored == Ignored::kInMean) continue;
      label = choices.ignored == Ignored::kFirstToken ? 0 : c.V - 1;
    } else {
      ++sum.count;
    }
    sum.nll -= log_p[(b * c.T + t) * c.V + label];
  }
  return sum;
}

Outputs Replay(const Choices& choices, const LossCase& c) {
  Sum all;
  double means = 0, exponentials = 0;
  int64_t batches = 0;
  for (int64_t first = 0; first < c.B; first += choices.batch_rows) {
    Sum batch;
    for (int64_t b = first; b < std::min(first + choices.batch_rows, c.B); ++b) {
      const Sum row = RowSum(choices, c, b);
      batch.nll += row.nll;
      batch.count += row.count;
    }
    if (batch.count == 0) continue;
    all.nll += batch.nll;
    all.count += batch.count;
    means += batch.mean();
    exponentials += std::exp(batch.mean());
    ++batches;
  }
  double loss = all.mean();
  switch (choices.mean) {
    case Mean::kTokens:
      break;
    case Mean::kBatches:
      loss = means / static_cast<double>(batches);
      break;
    case Mean::kSumOfBatches:
      loss = means;
      break;
    case Mean::kExponentials:
      loss = std::log(exponentials / static_cast<double>(batches));
      break;
    case Mean::kSum:
      loss = all.nll;
      break;
    case Mean::kSumByRows:
      loss = all.nll / static_cast<double>(c.B);
      break;
    case Mean::kFirstAlsoCounts:
      loss = all.nll / static_cast<double>(all.count + c.B);
      break;
  }
  if (choices.bits) loss /= std::numbers::ln2;
  return {{c.is_perplexity || choices.as_perplexity ? std::exp(loss) : loss}};
}

std::vector<Deviation<Choices>> Deviations(const LossCase& c) {
  const char* const kMoreRows = "logits and targets of rows with unequal numbers of targets";
  const auto shift = [&c](int64_t by, Edge edge) {
    return [at = c.shift + by, edge](Choices* choices) {
      choices->shift = at;
      choices->edge = edge;
    };
  };
  const auto ignored = [](Ignored value) {
    return [value](Choices* choices) { choices->ignored = value; };
  };
  const auto mean = [](Mean value, int64_t batch_rows = 1, bool as_perplexity = false) {
    return [=](Choices* choices) {
      choices->mean = value;
      choices->batch_rows = batch_rows;
      choices->as_perplexity = as_perplexity;
    };
  };
  const char* const kRowMeans =
      c.is_perplexity ? "perplexity_averaging" : "accumulation_token_mean";
  std::vector<Deviation<Choices>> all = {
      {"labels_not_shifted", "shift", shift(-1, Edge::kCut), ""},
      {"labels_not_shifted", "shift", shift(-1, Edge::kNextRow), "", "rows flattened first"},
      {"labels_not_shifted", "shift", shift(-1, Edge::kSameRow), "", "labels rolled around"},
      {"labels_not_shifted", "shift", shift(-1, Edge::kLastCut), "", "without the last position"},
      {"labels_not_shifted", "shift", shift(-1, Edge::kFirstCut), "", "without the first position"},
      {"labels_shifted_twice", "shift", shift(1, Edge::kCut), ""},
      {"labels_shifted_twice", "shift", shift(1, Edge::kNextRow), "", "rows flattened first"},
      {"labels_shifted_twice", "shift", shift(1, Edge::kSameRow), "", "labels rolled around"},
      {"ignored_targets_counted", "ignored", ignored(Ignored::kInMean), "targets with -1 in them",
       "in the mean"},
      {"ignored_targets_counted", "ignored", ignored(Ignored::kFirstToken),
       "targets with -1 in them", "as token 0"},
      {"ignored_targets_counted", "ignored", ignored(Ignored::kLastToken),
       "targets with -1 in them", "as the last token"},
      {kRowMeans, "mean", mean(Mean::kBatches), kMoreRows, "mean of the rows' means"},
      {"perplexity_averaging", "mean", mean(Mean::kExponentials), "logits and targets of two rows",
       "mean of the rows' perplexities"},
      {"loss_not_averaged", "mean", mean(Mean::kSum), ""},
      {"loss_not_averaged", "mean", mean(Mean::kSumByRows), "", "divided by the rows alone"},
      {"loss_in_bits", "bits", [](Choices* choices) { choices->bits = true; }, ""},
      {"loss_softmax_twice", "softmax", [](Choices* choices) { choices->softmax_twice = true; },
       ""},
  };
  for (int64_t rows = 1; rows < c.B; ++rows) {
    if (c.B % rows != 0) continue;
    const std::string batches = fmt::format("of {} batches", c.B / rows);
    all.push_back({"accumulation_not_averaged", "mean", mean(Mean::kSumOfBatches, rows), "",
                   "sum of the means " + batches});
    if (rows == 1) continue;
    all.push_back(
        {kRowMeans, "mean", mean(Mean::kBatches, rows), kMoreRows, "mean of the means " + batches});
    all.push_back({"perplexity_averaging", "mean", mean(Mean::kExponentials, rows), kMoreRows,
                   "mean of the perplexities " + batches});
  }
  if (!c.is_perplexity && c.B > 1) {
    all.push_back({"perplexity_averaging", "mean", mean(Mean::kExponentials, 1, true), "",
                   "mean of the rows' perplexities, not of their losses"});
  }
  if (c.shift > 0) {
    all.push_back({"perplexity_averaging", "mean", mean(Mean::kFirstAlsoCounts), "",
                   "divided by n in place of n - 1"});
  }
  return all;
}

// One for each label that occurs.
std::vector<Deviation<Choices>> StopTokens(const LossCase& c) {
  std::vector<Deviation<Choices>> all;
  for (const int64_t label : std::set<int64_t>(c.labels.begin(), c.labels.end())) {
    if (label < 0) continue;
    all.push_back({"stop_token_ignored", "stop",
                   [label](Choices* choices) { choices->left_out = label; }, "",
                   fmt::format("targets {} are left out", label)});
  }
  return all;
}

Status ReadReported(Dump* dump, LossCase* c) {
  c->is_perplexity = !dump->Has("loss") && dump->Has("perplexity");
  HEED_ASSIGN(c->reported, dump->Floats(c->is_perplexity ? "perplexity" : "loss"));
  if (c->reported.values.size() == 1) return {};
  return dump->ShapeError(c->reported.name, "[1]", "give the mean over all targets");
}

Result<LossCase> ReadCase(Dump* dump) {
  LossCase c;
  HEED_ASSIGN(const Observed logits, dump->Floats("logits"));
  const size_t rank = logits.shape.size();
  if (rank != 2 && rank != 3) return dump->ShapeError("logits", "[B, T, V] or [T, V]");
  c.V = logits.shape[rank - 1];
  c.T = logits.shape[rank - 2];
  c.B = rank == 3 ? logits.shape[0] : 1;
  const char* name = dump->Has("targets") || !dump->Has("tokens") ? "targets" : "tokens";
  const int64_t lowest = std::numeric_limits<int64_t>::min() + 1;
  HEED_ASSIGN(c.labels, dump->Integers(name, lowest, c.V - 1));
  const std::vector<int64_t> shape(logits.shape.begin(), logits.shape.end() - 1);
  if (dump->file().Find(name)->shape != shape) {
    return dump->ShapeError(name, "logits without their last axis = " + ShapeText(shape));
  }
  c.shift = std::string_view(name) == "tokens" ? 1 : 0;
  c.log_p = LogSoftmax(logits.values, c.V);
  std::vector<double> p(c.log_p.size());
  std::ranges::transform(c.log_p, p.begin(), [](double x) { return std::exp(x); });
  c.log_p_twice = LogSoftmax(p, c.V);
  HEED_TRY(ReadReported(dump, &c));
  Choices right;
  right.shift = c.shift;
  for (int64_t b = 0; b < c.B; ++b) {
    if (RowSum(right, c, b).count > 0) return c;
  }
  return Fail(ErrorKind::kFormat, dump->where() + ": tensor " + Quoted(name),
              "no target that counts", "at least one from 0 to V - 1");
}

}  // namespace

Result<Diagnosis> DiagnoseLoss(const TensorFile& file, const std::string& where,
                               const SettingTexts& given) {
  Dump dump(file, where, given);
  HEED_ASSIGN(const LossCase c, ReadCase(&dump));
  Reading<Choices> plain;
  plain.choices.shift = c.shift;
  plain.names["labels"] = c.shift == 1 ? "tokens, shifted by one" : "targets, aligned with logits";
  Replayer<Choices> replayer;
  replayer.theirs = {c.reported};
  replayer.floor = NoiseFloorOf(c.reported.dtype, dump.coarsest());
  replayer.replay = [&c](const Choices& choices) { return Replay(choices, c); };
  replayer.floor.tie = std::max(replayer.floor.tie, UnitRoundoff(c.reported.dtype));
  const std::vector<Reading<Choices>> conventions = {plain};
  replayer.deviations = Deviations(c);
  // In 16 bits some label always meets one number.
  if (UnitRoundoff(c.reported.dtype) <= UnitRoundoff(DType::kF32)) {
    const std::vector<Deviation<Choices>> stops = StopTokens(c);
    replayer.deviations.insert(replayer.deviations.end(), stops.begin(), stops.end());
  }
  replayer.most_faults = 1;
  Diagnosis diagnosis = FaultSearch<Choices>(replayer, conventions).Run();
  if (diagnosis.verdict != DiagnosisVerdict::kUnexplained) return diagnosis;
  // One number meets some triple of faults by chance, or one with some label.
  replayer.deviations = Deviations(c);
  replayer.most_faults = 2;
  return FaultSearch<Choices>(replayer, conventions).Run();
}

Result<std::optional<FaultView>> ViewLossFault(const TensorFile& file, const SettingTexts& given,
                                               const std::string& id) {
  const std::string where = "example";
  Dump dump(file, where, given);
  HEED_ASSIGN(LossCase c, ReadCase(&dump));
  Choices right;
  right.shift = c.shift;
  Replayer<Choices> replayer;
  replayer.theirs = {{"weight of each label", {c.B * c.T, c.V}}};
  // What the loss takes from the logarithm of each probability.
  replayer.replay = [&c](const Choices& choices) {
    const double loss = Replay(choices, c)[0][0];
    std::vector<double> weights;
    for (size_t i = 0; i < c.log_p.size(); ++i) {
      constexpr double kStep = 1e-4;
      LossCase moved = c;
      moved.log_p[i] -= kStep;
      moved.log_p_twice[i] -= kStep;
      weights.push_back((Replay(choices, moved)[0][0] - loss) / kStep);
    }
    return Outputs{std::move(weights)};
  };
  replayer.deviations = Deviations(c);
  const std::vector<Deviation<Choices>> stops = StopTokens(c);
  replayer.deviations.insert(replayer.deviations.end(), stops.begin(), stops.end());
  return ViewOf(replayer, right, id);
}

std::span<const FaultKind> LossFaults() { return kFaults; }

}  // namespace heed
