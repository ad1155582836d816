#include "verify/diagnose/norm_diagnosis.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tensor/shape.h"
#include "verify/diagnose/block_recipe.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

constexpr FaultKind kFaults[] = {
    {"norm_unbiased", "the variance is divided by n - 1 in place of n",
     "divide the sum of squares by the number of channels",
     "var = x.var(-1, keepdim=True, "
     "unbiased=False)",
     "var = sum_of_squares / C;", "every row is too small by the same factor sqrt((n - 1) / n)"},
    {"norm_eps_outside_sqrt", "eps is added to the standard deviation, behind the root",
     "add eps to the variance, under the root", "x_hat = (x - mean) / torch.sqrt(var + eps)",
     "const double rstd = 1 / std::sqrt(var + eps);",
     "rows of large variance are equal, rows of small variance differ"},
    {"norm_eps_value", "another eps than the model was trained with",
     "take eps from the model's configuration", "norm = torch.nn.LayerNorm(C, eps=1e-5)",
     "constexpr double kEps = 1e-5;",
     "rows of large variance are equal, and the fitted eps reproduces the others"},
    {"norm_cancellation", "the variance is taken as E[x^2] - E[x]^2 in float32, which cancels",
     "subtract the mean first, then square", "var = ((x - mean) ** 2).mean(-1, keepdim=True)",
     "sum += (x[c] - mean) * (x[c] - mean);",
     "add 2000 to x: a layer norm must not move, this one does; each row has a factor of its own"},
    {"norm_gain_plus_one", "the gain is 1 + weight where the weight is stored whole",
     "multiply by the weight itself; 1 + weight is for checkpoints whose gains lie near 0",
     "y = x_hat * weight", "y[c] = x_hat[c] * weight[c];", "y - x_hat * weight is x_hat itself"},
    {"norm_cast_order", "numbers are cast to 16 bits before the gain, or before they are squared",
     "compute the norm in float32, multiply by the gain, cast last",
     "y = (x_hat.float() * weight.float()).to(x.dtype)",
     "y[c] = FloatToBf16(x_hat[c] * weight[c]);", "in float32 alone nothing differs"},
    {"norm_bias_missing", "the norm's bias is dropped", "add the bias after the gain",
     "y = x_hat * weight + bias", "y[c] = x_hat[c] * weight[c] + bias[c];",
     "the difference is one vector, the same in every row"},
    {"norm_gain_missing", "the gain is dropped", "multiply by the weight", "y = x_hat * weight",
     "y[c] = x_hat[c] * weight[c];", "y / x_hat is 1 in every channel"},
    {"norm_kind", "layer norm where RMS norm belongs, or the reverse",
     "subtract the mean in a layer norm and do not in an RMS norm",
     "x_hat = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)  # RMS norm",
     "sum += x[c] * x[c];  // RMS norm", "rows of mean 0 are equal, the others differ"},
    {"norm_axis", "statistics are taken over the positions, or over all of a sequence",
     "take mean and variance over the channels of each position alone",
     "mean = x.mean(-1, keepdim=True)", "for (int64_t c = 0; c < C; ++c) sum += x[row * C + c];",
     "change one position: other rows must not move, and do"},
};

enum class Axis { kChannels, kPositions, kSequence };

struct Choices : NormChoice {
  Axis axis = Axis::kChannels;
};

struct NormCase {
  Observed x, weight, y;
  std::vector<double> bias;  // or empty
  int64_t B = 1, T = 1, C = 1;
};

// E[x²] − E[x]² depends on the order of its sums, which nobody knows. So each row's factor is taken
// from their own numbers, as long as float32's rounding of x² can have made it.
double CancelledFactor(const Choices& choices, const NormCase& n, int64_t row, double mean) {
  const double* x = &n.x.values[row * n.C];
  const double* y = &n.y.values[row * n.C];
  double dot = 0, norm = 0, squares = 0, variance = 0;
  for (int64_t c = 0; c < n.C; ++c) {
    const double centred = (x[c] - mean) * n.weight.values[c];
    const double bias = n.bias.empty() ? 0 : n.bias[c];
    dot += centred * (y[c] - bias);
    norm += centred * centred;
    squares += x[c] * x[c];
    variance += (x[c] - mean) * (x[c] - mean);
  }
  squares /= static_cast<double>(n.C);
  variance /= static_cast<double>(n.C);
  constexpr double kRoundings = 16;
  const double reach = kRoundings * UnitRoundoff(DType::kF32) * squares;
  const double factor = dot / norm;
  const double implied = 1 / (factor * factor) - choices.eps;
  if (std::isnan(dot) && variance + choices.eps <= reach) return factor;  // a negative variance
  return std::abs(implied - variance) <= reach ? factor : 1 / std::sqrt(variance + choices.eps);
}

Moments RowMoments(const Choices& choices, const NormCase& n, int64_t b, int64_t t) {
  const double* x = &n.x.values[b * n.T * n.C];
  switch (choices.axis) {
    case Axis::kPositions:
      return {};  // by channel: see Replay
    case Axis::kSequence:
      return MomentsOf(choices, n.T * n.C, [&](int64_t i) { return x[i]; });
    case Axis::kChannels:
      break;
  }
  Moments moments = MomentsOf(choices, n.C, [&](int64_t c) { return x[t * n.C + c]; });
  if (choices.variance == Variance::kCancelling) {
    moments.rstd = CancelledFactor(choices, n, b * n.T + t, moments.mean);
  }
  return moments;
}

Outputs Replay(const Choices& choices, const NormCase& n) {
  std::vector<double> y(n.x.values.size());
  std::vector<Moments> by_channel(n.C);
  for (int64_t b = 0; b < n.B; ++b) {
    const double* x = &n.x.values[b * n.T * n.C];
    for (int64_t c = 0; c < n.C && choices.axis == Axis::kPositions; ++c) {
      by_channel[c] = MomentsOf(choices, n.T, [&](int64_t t) { return x[t * n.C + c]; });
    }
    for (int64_t t = 0; t < n.T; ++t) {
      const Moments row = RowMoments(choices, n, b, t);
      for (int64_t c = 0; c < n.C; ++c) {
        const Moments& m = choices.axis == Axis::kPositions ? by_channel[c] : row;
        y[(b * n.T + t) * n.C + c] = NormApply(choices, m, x[t * n.C + c], n.weight.values[c],
                                               n.bias.empty() ? 0 : n.bias[c]);
      }
    }
  }
  return {std::move(y)};
}

constexpr const char* kSmallRow = "a row of x whose variance is near norm_eps";
constexpr const char* kBiasToo = "a bias that is not 0";
constexpr const char* kPlainGain = "gains that are not all 1";

std::vector<Deviation<Choices>> Deviations(double right_eps) {
  std::vector<Deviation<Choices>> all = {
      {"norm_unbiased", "variance", [](Choices* c) { c->variance = Variance::kSample; }, ""},
      {"norm_eps_outside_sqrt", "eps", [](Choices* c) { c->place = EpsPlace::kOutside; },
       kSmallRow},
      {"norm_gain_plus_one", "gain", [](Choices* c) { c->gain_offset += 1; }, "", "1 + weight"},
      {"norm_gain_missing", "gain", [](Choices* c) { c->gain = false; }, kPlainGain},
      {"norm_bias_missing", "bias", [](Choices* c) { c->bias = false; }, kBiasToo},
      {"norm_kind", "kind", [](Choices* c) { c->rms = !c->rms; }, "rows of x whose mean is not 0"},
      {"norm_axis", "axis", [](Choices* c) { c->axis = Axis::kPositions; }, "",
       "over the positions"},
      {"norm_axis", "axis", [](Choices* c) { c->axis = Axis::kSequence; }, "", "over the sequence"},
  };
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const auto cast = [type](NormCast place) {
      return [type, place](Choices* c) {
        c->cast = place;
        c->cast_type = type;
      };
    };
    const bool bf16 = type == DType::kBF16;
    all.push_back({"norm_cast_order", "cast", cast(NormCast::kBeforeGain), "",
                   bf16 ? "to bf16 before the gain" : "to f16 before the gain"});
    all.push_back({"norm_cast_order", "cast", cast(NormCast::kBeforeSquare), "",
                   bf16 ? "squares in bf16" : "squares in f16"});
  }
  Deviation<Choices> eps{"norm_eps_value", "eps", nullptr, kSmallRow, ""};
  eps.fit.grid = {1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1};
  eps.fit.change = [](double value, Choices* c) { c->eps = value; };
  eps.fit.belongs = [right_eps](double value) {
    return std::abs(value - right_eps) > 5e-3 * right_eps;
  };
  eps.fit.detail = [](double value) { return fmt::format("eps {:.3g}", value); };
  all.push_back(eps);
  all.push_back({"norm_eps_value", "eps",
                 [](Choices* c) {
                   c->place = EpsPlace::kFloor;
                   c->eps = 1e-4;
                 },
                 kSmallRow, "a floor of 1e-4 under the variance"});
  return all;
}

// Gains stored near 0 were trained as 1 + weight.
bool LiesNearZero(const std::vector<double>& weight) {
  double squares = 0;
  for (const double w : weight) squares += w * w;
  return squares < 0.09 * static_cast<double>(weight.size());
}

// How much worse float32 knows x - mean than x: the root mean square of x by its deviation.
double Condition(const Choices& choices, const NormCase& n) {
  double worst = 1;
  for (int64_t row = 0; row < n.B * n.T; ++row) {
    const double* x = &n.x.values[row * n.C];
    const Moments moments = MomentsOf(choices, n.C, [&](int64_t c) { return x[c]; });
    worst = std::max(worst, std::abs(moments.mean) * moments.rstd);
  }
  return worst;
}

Result<NormCase> ReadCase(Dump* dump) {
  NormCase n;
  HEED_ASSIGN(n.x, dump->Floats("x"));
  n.C = n.x.shape.empty() ? 1 : n.x.shape.back();
  if (n.x.shape.size() < 2 || n.C < 2) {
    return dump->ShapeError("x", "[.., C] of two axes and two channels or more");
  }
  n.T = n.x.shape[n.x.shape.size() - 2];
  n.B = static_cast<int64_t>(n.x.values.size()) / (n.T * n.C);
  HEED_ASSIGN(n.weight, dump->Floats("weight", {n.C}, "one gain for each channel"));
  if (dump->Has("bias")) {
    HEED_ASSIGN(Observed bias, dump->Floats("bias", {n.C}, "one number for each channel"));
    n.bias = std::move(bias.values);
  }
  HEED_ASSIGN(n.y, dump->Floats("y", n.x.shape, "the shape of x", /*any=*/true));
  return n;
}

std::vector<Reading<Choices>> Conventions(bool rms, std::optional<double> eps, const NormCase& n) {
  std::vector<double> values = {eps.value_or(1e-5)};
  if (!eps) values.push_back(1e-6);
  std::vector<Reading<Choices>> all;
  for (const double value : values) {
    Reading<Choices> convention;
    convention.choices.rms = rms;
    convention.choices.eps = value;
    if (!eps) convention.names["norm_eps"] = fmt::format("{}", value);
    all.push_back(convention);
    if (!LiesNearZero(n.weight.values)) continue;
    convention.names["gain"] = "1 + weight";
    convention.choices.gain_offset = 1;
    all.push_back(convention);
  }
  return all;
}

Result<bool> IsRms(const Dump& dump) {
  HEED_ASSIGN(const std::optional<std::string> kind, dump.Setting<std::string>("kind"));
  if (!kind || *kind == "layernorm") return false;
  if (*kind == "rmsnorm") return true;
  return BadRequest(dump.where() + ": kind", "'" + *kind + "'", "layernorm or rmsnorm");
}

// All that a search needs; `n` is what the replayer reads.
Status Prepare(Dump* dump, NormCase* n, Replayer<Choices>* replayer,
               std::vector<Reading<Choices>>* conventions) {
  HEED_ASSIGN(const bool rms, IsRms(*dump));
  HEED_ASSIGN(const std::optional<double> eps, dump->Setting<double>("norm_eps"));
  if (eps && !(*eps >= 0)) {
    return BadRequest(dump->where() + ": norm_eps", fmt::format("{}", *eps), "a number from 0");
  }
  HEED_ASSIGN(*n, ReadCase(dump));
  *conventions = Conventions(rms, eps, *n);
  replayer->theirs = {n->y};
  replayer->floor = NoiseFloorOf(n->y.dtype, dump->coarsest());
  replayer->floor.arithmetic =
      std::max(replayer->floor.arithmetic,
               8 * UnitRoundoff(DType::kF32) * Condition(conventions->front().choices, *n));
  replayer->replay = [n](const Choices& choices) { return Replay(choices, *n); };
  replayer->deviations = Deviations(eps.value_or(0));
  return {};
}

Deviation<Choices> Cancellation() {
  return {"norm_cancellation", "variance", [](Choices* c) { c->variance = Variance::kCancelling; },
          ""};
}

Status PrepareExample(Dump* dump, NormCase* n, Replayer<Choices>* replayer,
                      std::vector<Reading<Choices>>* conventions) {
  HEED_TRY(Prepare(dump, n, replayer, conventions));
  replayer->deviations.push_back(Cancellation());
  return {};
}

}  // namespace

Result<Diagnosis> DiagnoseNorm(const TensorFile& file, const std::string& where,
                               const SettingTexts& given) {
  Prepared<NormCase, Choices> p(file, where, given);
  HEED_TRY(p.By(Prepare));
  Diagnosis diagnosis = FaultSearch<Choices>(p.replayer, p.conventions).Run();
  const auto residual = [](const Diagnosis& d) {
    return d.explanations.empty() ? std::numeric_limits<double>::infinity()
                                  : d.explanations.front().residual;
  };
  // Where the mean is large, noise alone hides much: a factor for each row must then do far better.
  if (residual(diagnosis) > NoiseFloorOf(p.c.y.dtype, p.dump.coarsest()).arithmetic) {
    p.replayer.deviations = {Cancellation()};
    Diagnosis cancelled = FaultSearch<Choices>(p.replayer, p.conventions).Run();
    if (cancelled.verdict == DiagnosisVerdict::kFault &&
        residual(cancelled) < 0.1 * residual(diagnosis)) {
      diagnosis = std::move(cancelled);
    }
  }
  if (diagnosis.verdict == DiagnosisVerdict::kUnexplained) HEED_TRY(p.dump.CheckFinite(p.c.y));
  return diagnosis;
}

Result<std::optional<FaultView>> ViewNormFault(const TensorFile& file, const SettingTexts& given,
                                               const std::string& id) {
  return Prepared<NormCase, Choices>::View(PrepareExample, file, given, id);
}

std::span<const FaultKind> NormFaults() { return kFaults; }

}  // namespace heed
