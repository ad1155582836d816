#include "verify/diagnose/optimizer_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/quote.h"
#include "optim/adamw.h"
#include "tensor/convert.h"
#include "tensor/shape.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

constexpr const char* kStep =
    "p -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)";
constexpr const char* kStepCpp =
    "p -= lr * (m / correction1) / (std::sqrt(v / correction2) + eps);";
constexpr const char* kDecay = "p *= 1 - lr * weight_decay  # p.dim() >= 2 alone";
constexpr const char* kDecayCpp = "p *= 1 - lr * weight_decay;";
constexpr const char* kClip = "loss.backward(); clip_grad_norm_(parameters, 1.0); opt.step()";
constexpr const char* kClipCpp = "scale = std::min(1.0, clip / (norm + 1e-6));";
constexpr const char* kAccumulate = "(loss / n_micro).backward()  # n_micro times, then one step";
constexpr const char* kAccumulateCpp = "for (float& g : grad) g /= micro_batches;";

constexpr FaultKind kFaults[] = {
    {"adam_bias_correction",
     "moments are not corrected for their start at zero, or by beta in "
     "place of beta^t",
     "divide m by 1 - beta1^t and v by 1 - beta2^t, t from 1", kStep, kStepCpp,
     "the first step is lr times the gradient's sign when right"},
    {"adam_eps_place", "eps is added under the root, or before the second moment is corrected",
     "add eps to the root of the corrected second moment", kStep, kStepCpp,
     "gradients near eps, 1e-8: all others hide it"},
    {"adam_betas_swapped", "beta1 and beta2 are exchanged", "beta1 is of m, beta2 of v",
     "opt = torch.optim.AdamW(parameters, betas=(0.9, 0.95))", "m = beta1 * m + (1 - beta1) * g;",
     "the second step and later"},
    {"decay_on_norms", "weight decay touches biases and norm gains",
     "decay tensors of two and more dimensions alone", kDecay, kDecayCpp,
     "a gradient of zero: which parameters move?"},
    {"decay_missing", "weight decay touches nothing", "decay tensors of two and more dimensions",
     kDecay, kDecayCpp, "a gradient of zero: nothing moves"},
    {"decay_coupled", "the decay is added to the gradient, as Adam with L2 has it",
     "take it off the parameter, beside the moments", kDecay, kDecayCpp,
     "a gradient of zero: the step has the size of the learning rate"},
    {"decay_without_rate", "the decay is not multiplied by the learning rate",
     "scale the parameter by 1 - lr * weight_decay", kDecay, kDecayCpp,
     "a gradient of zero: parameters shrink by weight_decay itself"},
    {"clip_misplaced", "clipping has no effect on this step, or acts on each tensor or micro-batch",
     "clip the norm of all gradients together, after backward and unscaling, before the step",
     kClip, kClipCpp, "the gradient's norm after clipping against the limit"},
    {"accumulation_not_averaged", "gradients of micro-batches are summed",
     "divide each "
     "micro-batch's loss by their number",
     kAccumulate, kAccumulateCpp, "one micro-batch against four of the same data"},
    {"zero_grad_misplaced", "gradients are cleared before each micro-batch",
     "clear them once for each step",
     "opt.zero_grad(); [loss.backward() for loss in losses]; "
     "opt.step()",
     "std::fill(grad.begin(), grad.end(), 0.0f);  // before the first micro-batch",
     "the step follows the last micro-batch alone"},
    {"schedule_zero_start", "the learning rate of the first step is 0",
     "start the warm-up at 1 / (warmup + 1), not at 0", "lr = max_lr * (it + 1) / (warmup + 1)",
     "return lr * (iteration + 1.0) / (warmup + 1.0);",
     "parameters after the step are those before"},
    {"schedule_off_by_one", "warm-up or decay ends a step early or late",
     "let the last step of each part have its end's rate, and the next part begin behind it",
     "lr = [schedule(it) for it in range(warmup + stable + decay)]  # print and look",
     "const double lr = schedule.At(iteration);  // 0 to max_iters - 1",
     "the table of rates for 4 steps of warm-up, 2 at the top and 4 of decay"},
    {"learning_rate_value", "another learning rate than the one stated",
     "print the rate that the optimizer uses in this step; a schedule may be one step off",
     "print(opt.param_groups[0]['lr'])", "const double lr = schedule.At(iteration);",
     "the fitted rate reproduces every parameter"},
    {"resume_partial", "moments or the step's number are not restored",
     "save and load m, v and the step with the parameters",
     "opt.load_state_dict(checkpoint['optimizer'])", "adamw->set_steps(checkpoint.steps);",
     "the update equals that of an optimizer that has just begun"},
    {"gradient_sign", "the step climbs", "subtract the step", kStep, kStepCpp,
     "after - before has the gradient's sign"},
};

enum class Correction { kPower, kNone, kFirstOnly, kSecondOnly, kBeta };
enum class Eps { kOutside, kInside, kUncorrected, kInsideUncorrected };
enum class Decay { kMatrices, kAll, kNone, kCoupled, kCoupledAll, kWithoutRate };
enum class Clip { kGlobal, kNone, kByTensor, kByValue, kByMicroBatch };
enum class Micro { kMean, kSum, kLast, kLastWhole };
enum class Resume { kWhole, kNoMoments, kNoFirst, kNoSecond, kFresh, kStepOne, kBf16Moments };

struct Choices {
  double rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;
  double clip_eps = 1e-6;
  Correction correction = Correction::kPower;
  Eps eps_place = Eps::kOutside;
  Decay decay = Decay::kMatrices;
  Clip clip = Clip::kGlobal;
  Micro micro = Micro::kMean;
  double gradient_factor = 1;
  Resume resume = Resume::kWhole;
  double sign = 1;
};

struct Parameter {
  std::string name;
  bool matrix = false;
  std::vector<double> before, gradients, m, v;  // gradients [N, ..]
  int64_t micro_batches = 1;
};

struct OptimizerCase {
  std::vector<Parameter> parameters;
  std::vector<Observed> after;
  double grad_clip = 0;
  std::optional<double> grad_norm;
  bool has_moments = false;
  std::optional<Schedule> schedule;  // stated; then learning_rate is its peak
};

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

void Scale(double factor, std::vector<double>* values) {
  for (double& x : *values) x *= factor;
}

class Step {
 public:
  Step(const Choices& choices, const OptimizerCase& c) : choices_(choices), case_(c) {}

  Outputs Run() {
    for (const Parameter& p : case_.parameters) gradients_.push_back(GradientOf(p));
    ClipAll();
    Outputs after;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      after.push_back(Update(case_.parameters[i], gradients_[i]));
    }
    return after;
  }

 private:
  double Limit(double norm) const {
    return std::min(1.0, case_.grad_clip / (norm + choices_.clip_eps));
  }

  // The norm of micro-batch i over all parameters.
  double MicroNorm(int64_t i) const {
    double sum = 0;
    for (const Parameter& p : case_.parameters) {
      const auto n = static_cast<int64_t>(p.before.size());
      for (int64_t j = 0; j < n; ++j) {
        const double g = p.gradients[(i % p.micro_batches) * n + j];
        sum += g * g;
      }
    }
    return std::sqrt(sum);
  }

  std::vector<double> GradientOf(const Parameter& p) const {
    const auto n = static_cast<int64_t>(p.before.size());
    std::vector<double> sum(n);
    const bool clipped = choices_.clip == Clip::kByMicroBatch && case_.grad_clip > 0;
    for (int64_t i = 0; i < p.micro_batches; ++i) {
      const bool last = choices_.micro == Micro::kLast || choices_.micro == Micro::kLastWhole;
      if (last && i + 1 < p.micro_batches) continue;
      const double factor = clipped ? Limit(MicroNorm(i)) : 1;
      for (int64_t j = 0; j < n; ++j) sum[j] += factor * p.gradients[i * n + j];
    }
    const bool averaged = choices_.micro == Micro::kMean || choices_.micro == Micro::kLast;
    const double divisor = averaged ? static_cast<double>(p.micro_batches) : 1;
    Scale(choices_.gradient_factor / divisor, &sum);
    return sum;
  }

  void ClipAll() {
    if (case_.grad_clip == 0) return;
    double squares = 0;
    for (const std::vector<double>& g : gradients_) squares += Norm(g) * Norm(g);
    const double norm =
        case_.grad_norm ? *case_.grad_norm * choices_.gradient_factor : std::sqrt(squares);
    for (std::vector<double>& g : gradients_) {
      if (choices_.clip == Clip::kGlobal) Scale(Limit(norm), &g);
      if (choices_.clip == Clip::kByTensor) Scale(Limit(Norm(g)), &g);
      if (choices_.clip != Clip::kByValue) continue;
      for (double& x : g) x = std::clamp(x, -case_.grad_clip, case_.grad_clip);
    }
  }

  double Moment(const std::vector<double>& moments, bool first, size_t i) const {
    const Resume resume = choices_.resume;
    const bool lost = resume == Resume::kNoMoments || resume == Resume::kFresh ||
                      resume == (first ? Resume::kNoFirst : Resume::kNoSecond);
    if (moments.empty() || lost) return 0;
    return resume == Resume::kBf16Moments ? double(Bf16ToFloat(DoubleToBf16(moments[i])))
                                          : moments[i];
  }

  // What the moments are divided by.
  double CorrectionOf(double beta, bool first) const {
    const bool one = choices_.resume == Resume::kFresh || choices_.resume == Resume::kStepOne;
    const double t = one ? 1 : static_cast<double>(choices_.step);
    switch (choices_.correction) {
      case Correction::kNone:
        return 1;
      case Correction::kFirstOnly:
        return first ? 1 - std::pow(beta, t) : 1;
      case Correction::kSecondOnly:
        return first ? 1 : 1 - std::pow(beta, t);
      case Correction::kBeta:
        return 1 - beta;
      case Correction::kPower:
        break;
    }
    return 1 - std::pow(beta, t);
  }

  double Divisor(double v) const {
    const double correction = CorrectionOf(choices_.beta2, false);
    switch (choices_.eps_place) {
      case Eps::kInside:
        return std::sqrt(v / correction + choices_.eps);
      case Eps::kUncorrected:
        return (std::sqrt(v) + choices_.eps) / std::sqrt(correction);
      case Eps::kInsideUncorrected:
        return std::sqrt((v + choices_.eps) / correction);
      case Eps::kOutside:
        break;
    }
    return std::sqrt(v / correction) + choices_.eps;
  }

  // The parameter's factor before the step.
  double Kept(const Parameter& p) const {
    switch (choices_.decay) {
      case Decay::kNone:
      case Decay::kCoupled:
      case Decay::kCoupledAll:
        return 1;
      case Decay::kWithoutRate:
        return p.matrix ? 1 - choices_.weight_decay : 1;
      case Decay::kMatrices:
        return p.matrix ? 1 - choices_.rate * choices_.weight_decay : 1;
      case Decay::kAll:
        break;
    }
    return 1 - choices_.rate * choices_.weight_decay;
  }

  std::vector<double> Update(const Parameter& p, const std::vector<double>& gradient) const {
    const bool coupled =
        choices_.decay == Decay::kCoupledAll || (choices_.decay == Decay::kCoupled && p.matrix);
    const double added = coupled ? choices_.weight_decay : 0;
    const double kept = Kept(p), correction = CorrectionOf(choices_.beta1, true);
    std::vector<double> after(p.before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      const double g = gradient[i] + added * p.before[i];
      const double m = choices_.beta1 * Moment(p.m, true, i) + (1 - choices_.beta1) * g;
      const double v = choices_.beta2 * Moment(p.v, false, i) + (1 - choices_.beta2) * g * g;
      const double step = m == 0 ? 0 : m / correction / Divisor(v);
      after[i] = kept * p.before[i] - choices_.sign * choices_.rate * step;
    }
    return after;
  }

  const Choices& choices_;
  const OptimizerCase& case_;
  Outputs gradients_;
};

struct OtherRate {
  double rate;
  std::string detail;
};

// What the stated schedule gives one iteration away, or with a part that ends one iteration away.
std::vector<OtherRate> OffByOne(const OptimizerCase& c, int64_t step) {
  if (!c.schedule) return {};
  const int64_t iteration = step - 1;
  const double right = c.schedule->At(iteration);
  std::vector<OtherRate> all;
  const auto add = [&](double rate, const char* detail) {
    if (std::abs(rate - right) > 1e-9 * right) all.push_back({rate, detail});
  };
  add(c.schedule->At(iteration + 1), "the rate of the next iteration");
  if (iteration > 0) add(c.schedule->At(iteration - 1), "the rate of the iteration before");
  for (const int64_t by : {1, -1}) {
    Schedule other = *c.schedule;
    other.warmup_iters += by;
    if (other.warmup_iters >= 0 && other.warmup_iters < other.lr_decay_iters) {
      add(other.At(iteration), by > 0 ? "warm-up ends a step late" : "warm-up ends a step early");
    }
    other = *c.schedule;
    other.lr_decay_iters += by;
    if (other.warmup_iters < other.lr_decay_iters) {
      add(other.At(iteration), by > 0 ? "decay ends a step late" : "decay ends a step early");
    }
  }
  return all;
}

std::vector<Deviation<Choices>> Deviations(const OptimizerCase& c, double rate, int64_t step) {
  const char* const kLater = "an update with m and v at step 2 or later";
  const char* const kTiny = "gradients near 1e-8";
  const char* const kLarge = "gradients whose norm exceeds grad_clip";
  const char* const kDecayed = "an update with weight_decay, of matrices and of norms";
  const auto correction = [](Correction value) {
    return [value](Choices* x) { x->correction = value; };
  };
  const auto eps = [](Eps value) { return [value](Choices* x) { x->eps_place = value; }; };
  const auto decay = [](Decay value) { return [value](Choices* x) { x->decay = value; }; };
  const auto clip = [](Clip value) { return [value](Choices* x) { x->clip = value; }; };
  const auto micro = [](Micro value) { return [value](Choices* x) { x->micro = value; }; };
  const auto resume = [](Resume value) { return [value](Choices* x) { x->resume = value; }; };
  std::vector<Deviation<Choices>> all = {
      {"schedule_zero_start", "rate", [](Choices* x) { x->rate = 0; }, ""},
      {"adam_bias_correction", "correction", correction(Correction::kNone), kLater, "none"},
      {"adam_bias_correction", "correction", correction(Correction::kFirstOnly), kLater, "m alone"},
      {"adam_bias_correction", "correction", correction(Correction::kSecondOnly), kLater,
       "v alone"},
      {"adam_bias_correction", "correction", correction(Correction::kBeta), kLater,
       "beta in place of beta^t"},
      {"adam_eps_place", "eps", eps(Eps::kInside), kTiny, "under the root"},
      {"adam_eps_place", "eps", eps(Eps::kUncorrected), kTiny, "before the correction"},
      {"adam_eps_place", "eps", eps(Eps::kInsideUncorrected), kTiny,
       "under the root, before the correction"},
      {"adam_betas_swapped", "betas", [](Choices* x) { std::swap(x->beta1, x->beta2); }, kLater},
      {"decay_on_norms", "decay", decay(Decay::kAll), kDecayed},
      {"decay_missing", "decay", decay(Decay::kNone), kDecayed},
      {"decay_coupled", "decay", decay(Decay::kCoupled), kDecayed},
      {"decay_coupled", "decay", decay(Decay::kCoupledAll), kDecayed, "on every tensor"},
      {"decay_without_rate", "decay", decay(Decay::kWithoutRate), kDecayed},
      {"clip_misplaced", "clip", clip(Clip::kNone), kLarge, "no effect"},
      {"clip_misplaced", "clip", clip(Clip::kByTensor), kLarge, "each tensor by its own norm"},
      {"clip_misplaced", "clip", clip(Clip::kByValue), kLarge, "each element"},
      {"clip_misplaced", "clip", clip(Clip::kByMicroBatch), kLarge, "each micro-batch"},
      {"accumulation_not_averaged", "micro", micro(Micro::kSum), "gradients of micro-batches"},
      {"zero_grad_misplaced", "micro", micro(Micro::kLast), "gradients of micro-batches"},
      {"zero_grad_misplaced", "micro", micro(Micro::kLastWhole), "gradients of micro-batches",
       "and not divided by their number"},
      {"resume_partial", "resume", resume(Resume::kFresh), kLater, "moments and step"},
      {"resume_partial", "resume", resume(Resume::kNoMoments), kLater, "moments"},
      {"resume_partial", "resume", resume(Resume::kNoFirst), kLater, "m"},
      {"resume_partial", "resume", resume(Resume::kNoSecond), kLater, "v"},
      {"resume_partial", "resume", resume(Resume::kStepOne), kLater, "step"},
      {"resume_partial", "resume", resume(Resume::kBf16Moments), kLater, "moments in bf16"},
      {"gradient_sign", "sign", [](Choices* x) { x->sign = -1; }, ""},
  };
  const bool split =
      std::ranges::any_of(c.parameters, [](const Parameter& p) { return p.micro_batches > 1; });
  for (const double n : {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 64}) {
    if (split) break;
    all.push_back({"accumulation_not_averaged", "micro",
                   [n](Choices* x) { x->gradient_factor = n; }, "",
                   "the gradient many times over"});
  }
  const std::vector<OtherRate> others = OffByOne(c, step);
  for (const OtherRate& near : others) {
    all.push_back({"schedule_off_by_one", "rate", [near](Choices* x) { x->rate = near.rate; },
                   "an update during warm-up or decay", near.detail});
  }
  Deviation<Choices> other{"learning_rate_value", "rate", nullptr, "", ""};
  for (double factor = 0.01; factor < 200; factor *= 10) other.fit.grid.push_back(rate * factor);
  other.fit.change = [](double value, Choices* x) { x->rate = value; };
  other.fit.belongs = [rate, others](double value) {
    const auto is = [value](double known) { return std::abs(value - known) <= 5e-3 * known; };
    return !is(rate) && std::ranges::none_of(others, is, &OtherRate::rate);
  };
  other.fit.detail = [](double value) { return fmt::format("learning_rate {:.3g}", value); };
  all.push_back(std::move(other));
  return all;
}

class CaseReader {
 public:
  CaseReader(Dump* dump, OptimizerCase* c) : dump_(*dump), case_(*c) {}

  Status Read() {
    for (const TensorEntry& entry : dump_.file().tensors()) {
      if (entry.name.starts_with("after.")) HEED_TRY(ReadParameter(entry.name.substr(6)));
    }
    if (case_.parameters.empty()) {
      return Fail(ErrorKind::kFormat, dump_.where(), "no tensor after.NAME",
                  "NAME, grad.NAME and after.NAME of each parameter");
    }
    return {};
  }

 private:
  Status ReadParameter(const std::string& name) {
    HEED_ASSIGN(Observed before, dump_.Floats(name));
    HEED_ASSIGN(Observed gradient, dump_.Floats("grad." + name));
    HEED_ASSIGN(Observed after,
                dump_.Floats("after." + name, before.shape, "its parameter's shape"));
    Parameter p{name, before.shape.size() >= 2};
    if (gradient.shape != before.shape) {
      std::vector<int64_t> inner = gradient.shape;
      if (!inner.empty()) inner.erase(inner.begin());
      if (inner != before.shape || gradient.shape.size() != before.shape.size() + 1) {
        return dump_.ShapeError(
            "grad." + name,
            "its parameter's shape = " + ShapeText(before.shape) + ", or [N, ..] of micro-batches");
      }
      p.micro_batches = gradient.shape[0];
    }
    if (dump_.Has("m." + name) || dump_.Has("v." + name)) {
      HEED_ASSIGN(Observed m, dump_.Floats("m." + name, before.shape, "its parameter's shape"));
      HEED_ASSIGN(Observed v, dump_.Floats("v." + name, before.shape, "its parameter's shape"));
      if (*std::ranges::min_element(v.values) < 0) {
        return Fail(ErrorKind::kFormat, dump_.where() + ": tensor " + Quoted("v." + name),
                    "a number below 0", "means of squares");
      }
      p.m = std::move(m.values);
      p.v = std::move(v.values);
      case_.has_moments = true;
    }
    p.before = std::move(before.values);
    p.gradients = std::move(gradient.values);
    case_.parameters.push_back(std::move(p));
    case_.after.push_back(std::move(after));
    return {};
  }

  Dump& dump_;
  OptimizerCase& case_;
};

// The stated value, or all that are to be tried.
Result<std::vector<double>> Values(const Dump& dump, const char* name, double least, double most,
                                   const char* range, std::vector<double> otherwise) {
  HEED_ASSIGN(const std::optional<double> stated, dump.Setting<double>(name));
  if (!stated) return otherwise;
  if (!(*stated >= least && *stated <= most)) {
    return BadRequest(dump.where() + ": " + name, fmt::format("{}", *stated), range);
  }
  return std::vector<double>{*stated};
}

constexpr double kAny = std::numeric_limits<double>::max();

// Every way to read the settings: what is not stated is tried.
Result<std::vector<Reading<Choices>>> ReadConventions(const Dump& dump, const OptimizerCase& c) {
  const char* const kBeta = "a number in [0, 1)";
  const char* const kPositive = "a number from 0";
  HEED_ASSIGN(const auto rates, Values(dump, "learning_rate", 0, kAny, kPositive, {}));
  if (rates.empty()) {
    return BadRequest(dump.where() + ": learning_rate", "none stated", "the rate of this update",
                      "give --learning-rate");
  }
  HEED_ASSIGN(const auto beta1, Values(dump, "beta1", 0, 1 - 1e-12, kBeta, {0.9}));
  HEED_ASSIGN(const auto beta2, Values(dump, "beta2", 0, 1 - 1e-12, kBeta, {0.999, 0.95, 0.99}));
  HEED_ASSIGN(const auto eps, Values(dump, "eps", 0, kAny, kPositive, {1e-8}));
  HEED_ASSIGN(const auto decays,
              Values(dump, "weight_decay", 0, kAny, kPositive, {0.1, 0.01, 0.0}));
  HEED_ASSIGN(const std::optional<int64_t> stated, dump.Setting<int64_t>("step"));
  if (stated && *stated < 0) {
    return BadRequest(dump.where() + ": step", fmt::format("{}", *stated),
                      "the number of this update, from 1");
  }
  std::vector<int64_t> steps = {std::max(stated.value_or(1), int64_t{1})};
  if (c.has_moments && stated && *stated > 0) steps.push_back(*stated + 1);
  std::vector<Reading<Choices>> all;
  for (const double b2 : beta2) {
    for (const double decay : decays) {
      for (const int64_t step : steps) {
        Reading<Choices> convention;
        const double rate = c.schedule ? c.schedule->At(step - 1) : rates[0];
        convention.choices = {rate, beta1[0], b2, eps[0], decay, step};
        if (beta2.size() > 1) convention.names["beta2"] = fmt::format("{}", b2);
        if (decays.size() > 1) convention.names["weight_decay"] = fmt::format("{}", decay);
        if (steps.size() > 1) {
          convention.names["step"] = step == *stated ? "counts this update" : "counts those before";
        }
        all.push_back(std::move(convention));
      }
    }
  }
  if (c.grad_clip == 0) return all;
  // PyTorch adds 1e-6 to the norm, others nothing.
  for (size_t i = 0, n = all.size(); i < n; ++i) {
    Reading<Choices> bare = all[i];
    bare.choices.clip_eps = 0;
    bare.names["grad_clip"] = "over the norm alone";
    all[i].names["grad_clip"] = "over the norm + 1e-6";
    all.push_back(std::move(bare));
  }
  return all;
}

// A peak, a warm-up and a cosine down to min_lr, as `heed train` has them; nothing where none of
// them is stated.
Status ReadSchedule(const Dump& dump, OptimizerCase* c) {
  HEED_ASSIGN(const auto peak, dump.Setting<double>("learning_rate"));
  HEED_ASSIGN(const auto least, dump.Setting<double>("min_lr"));
  HEED_ASSIGN(const auto warmup, dump.Setting<int64_t>("warmup_iters"));
  HEED_ASSIGN(const auto decay, dump.Setting<int64_t>("lr_decay_iters"));
  if (!warmup && !decay) return {};
  if (!peak || !least || !warmup || !decay) {
    return BadRequest(dump.where(), "a schedule in part",
                      "learning_rate (its peak), min_lr, warmup_iters and lr_decay_iters");
  }
  if (*warmup < 0 || *decay <= *warmup || !(*least >= 0)) {
    return BadRequest(dump.where() + ": lr_decay_iters", fmt::format("{}", *decay),
                      fmt::format("more than warmup_iters = {}", *warmup));
  }
  c->schedule = {*peak, *least, *warmup, *decay};
  return {};
}

Status ReadClip(const Dump& dump, OptimizerCase* c) {
  HEED_ASSIGN(const auto clip, Values(dump, "grad_clip", 0, kAny, "a number from 0 (none)", {0.0}));
  c->grad_clip = clip[0];
  HEED_ASSIGN(const auto norm, Values(dump, "grad_norm", 0, kAny, "a number from 0", {}));
  if (!norm.empty()) c->grad_norm = norm[0];
  return {};
}

// A step is known to float32's corrections: 1 - 0.999 is off by 5e-5 there.
double StepNoise(const OptimizerCase& c, const Outputs& right) {
  constexpr double kCorrection = 5e-5;
  double worst = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    double step = 0, size = 0;
    for (size_t j = 0; j < right[i].size(); ++j) {
      const double moved = right[i][j] - c.parameters[i].before[j];
      step += moved * moved;
      size += right[i][j] * right[i][j];
    }
    if (size > 0) worst = std::max(worst, std::sqrt(step / size));
  }
  return kCorrection * worst;
}

// All that a search needs; `c` is what the replayer reads.
Status Prepare(Dump* dump, OptimizerCase* c, Replayer<Choices>* replayer,
               std::vector<Reading<Choices>>* conventions) {
  HEED_TRY(CaseReader(dump, c).Read());
  HEED_TRY(ReadClip(*dump, c));
  HEED_TRY(ReadSchedule(*dump, c));
  HEED_ASSIGN(*conventions, ReadConventions(*dump, *c));
  replayer->theirs = c->after;
  replayer->replay = [c](const Choices& choices) { return Step(choices, *c).Run(); };
  std::vector<DType> stored;
  for (const Observed& after : c->after) stored.push_back(after.dtype);
  replayer->floor = NoiseFloorOf(CoarsestOf(stored), dump->coarsest());
  replayer->floor.arithmetic = 8 * UnitRoundoff(dump->coarsest()) +
                               StepNoise(*c, replayer->replay((*conventions)[0].choices));
  replayer->floor.storage = std::min(replayer->floor.storage, replayer->floor.arithmetic);
  const Choices& right = (*conventions)[0].choices;
  replayer->deviations = Deviations(*c, right.rate, right.step);
  replayer->most_partners = 24;
  return {};
}

}  // namespace

Result<Diagnosis> DiagnoseOptimizer(const TensorFile& file, const std::string& where,
                                    const SettingTexts& given) {
  Prepared<OptimizerCase, Choices> p(file, where, given);
  HEED_TRY(p.By(Prepare));
  return FaultSearch<Choices>(p.replayer, p.conventions).Run();
}

Result<std::optional<FaultView>> ViewOptimizerFault(const TensorFile& file,
                                                    const SettingTexts& given,
                                                    const std::string& id) {
  return Prepared<OptimizerCase, Choices>::View(Prepare, file, given, id);
}

std::span<const FaultKind> OptimizerFaults() { return kFaults; }

}  // namespace heed
