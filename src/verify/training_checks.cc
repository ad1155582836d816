#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "io/file.h"
#include "model/folder.h"
#include "optim/adamw.h"
#include "verify/checks.h"

namespace heed {
namespace {

// Standard errors that a mean of random numbers may be away from what it estimates.
constexpr double kStandardErrors = 5;

Finding NoDropout() { return NotApplicable("dropout 0"); }

// A small batch with the token after each position as its target.
struct Batch {
  int64_t B = 0;
  std::vector<int32_t> tokens, targets;  // [B, T]
};

Batch SmallBatch(const Probe& probe, int64_t B, uint32_t stream) {
  const int64_t T = std::min<int64_t>(8, probe.config().block_size);
  const std::vector<int32_t> text = probe.Tokens(B * (T + 1), stream);
  Batch batch{B};
  for (int64_t b = 0; b < B; ++b) {
    const auto first = text.begin() + b * (T + 1);
    batch.tokens.insert(batch.tokens.end(), first, first + T);
    batch.targets.insert(batch.targets.end(), first + 1, first + T + 1);
  }
  return batch;
}

std::vector<float> Gradients(const ParameterSet& parameters) {
  std::vector<float> all;
  all.reserve(parameters.elements());
  for (const Parameter& p : parameters.all()) all.insert(all.end(), p.grad, p.grad + p.elements);
  return all;
}

double Length(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double(value) * value;
  return std::sqrt(sum);
}

// Parameters moved together along their own gradients, and back again.
class Mover {
 public:
  explicit Mover(std::vector<Parameter*> moved) : moved_(std::move(moved)) {
    for (Parameter* p : moved_) {
      kept_.emplace_back(p->data, p->data + p->elements);
      directions_.emplace_back(p->grad, p->grad + p->elements);
      length_ = std::hypot(length_, Length(directions_.back()));
    }
  }
  ~Mover() { To(0); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  double length() const { return length_; }
  void To(double step) {
    for (size_t i = 0; i < moved_.size(); ++i) {
      for (int64_t j = 0; j < moved_[i]->elements; ++j) {
        moved_[i]->data[j] =
            static_cast<float>(kept_[i][j] + step * directions_[i][j] / std::max(length_, 1e-30));
      }
    }
  }

 private:
  std::vector<Parameter*> moved_;
  std::vector<std::vector<float>> kept_, directions_;
  double length_ = 0;
};

// The error of `moved`'s gradient along its own direction, as a share of it or, where it is small,
// of a hundredth of the whole gradient's length.
Result<double> DirectionalError(const Probe& probe, const Batch& batch,
                                std::vector<Parameter*> moved, double whole) {
  // The loss is known to about 1e-7: the steps move it by some thousandths, or parameters by less
  // than their own size.
  constexpr double kLossStep = 4e-3, kMostStep = 0.01;
  Mover mover(std::move(moved));
  const double scale = std::max(mover.length(), 1e-2 * whole);
  const double step = std::min(kLossStep / scale, kMostStep);
  const auto slope = [&](double h) -> Result<double> {
    mover.To(h);
    HEED_ASSIGN(const double up, probe.Loss(batch.tokens, batch.targets, batch.B));
    mover.To(-h);
    HEED_ASSIGN(const double down, probe.Loss(batch.tokens, batch.targets, batch.B));
    return (up - down) / (2 * h);
  };
  HEED_ASSIGN(const double coarse, slope(2 * step));
  HEED_ASSIGN(const double fine, slope(step));
  const double extrapolated = (4 * fine - coarse) / 3;  // Richardson: the error is of order h^4
  return std::abs(extrapolated - mover.length()) / scale;
}

// Where dropout acts in the first block, told from what a pass in training wrote.
Result<std::vector<std::string>> SilentDropouts(Probe& probe, const Pass& training) {
  HEED_ASSIGN(const Taps taps, Taps::Run(probe.model, training, probe.tokens));
  const double p = training.dropout;
  std::vector<std::string> silent;
  // A dropped number is 0, or leaves the residual stream as it was.
  const auto dropped = [&](const char* site, std::span<const float> x, std::span<const float> y) {
    int64_t zeros = 0;
    for (size_t i = 0; i < x.size(); ++i) zeros += x[i] == (y.empty() ? 0 : y[i]);
    const auto n = static_cast<double>(x.size());
    const double error = std::abs(static_cast<double>(zeros) / n - p);
    if (!(error <= kStandardErrors * std::sqrt(p * (1 - p) / n) + 0.01)) silent.emplace_back(site);
  };
  dropped("embedding", taps.Find("embedded"), {});
  dropped("attention output", taps.Find("h.0.middle"), taps.Find("embedded"));
  dropped("mlp output", taps.Find("h.0.output"), taps.Find("h.0.middle"));

  // The weights once more, without dropout, on the same q, k and v.
  HEED_ASSIGN(std::vector<LayerAttention> layers, probe.Attentions());
  const std::span<const float> qkv = taps.Find("h.0.attn.qkv");
  std::copy(qkv.begin(), qkv.end(), layers[0].qkv.begin());
  probe.model.kernels().attention_forward(layers[0].args);
  if (RelativeError(taps.Find("h.0.attn.merged"), layers[0].z) < 1e-4) {
    silent.emplace_back("attention weights");
  }
  return silent;
}

}  // namespace

Result<Finding> CheckDropoutModes(Probe& probe) {
  const double p = probe.config().dropout;
  if (p == 0) return NoDropout();
  Finding finding;
  const auto wrong = [&](const std::string& what) {
    ++finding.value;
    finding.note += (finding.note.empty() ? "" : "; ") + what;
  };
  Pass training = probe.model.NewPass(probe.B, probe.T);
  training.training = true;
  HEED_ASSIGN(const std::vector<float> first, probe.Logits(training, probe.tokens));
  HEED_ASSIGN(const std::vector<float> again, probe.Logits(training, probe.tokens));
  Pass later = training;
  later.step = 1;
  HEED_ASSIGN(const std::vector<float> second, probe.Logits(later, probe.tokens));
  if (!SameBits(first, again)) wrong("one seed and step gave two results");
  if (SameBits(first, second)) wrong("two steps of training are equal");
  HEED_ASSIGN(const std::vector<float> eval, probe.Logits());
  Pass without = training;
  without.dropout = 0;
  HEED_ASSIGN(const std::vector<float> plain, probe.Logits(without, probe.tokens));
  if (RelativeError(eval, plain) > 1e-6) wrong("eval is not the model without dropout");
  HEED_ASSIGN(const std::vector<std::string> silent, SilentDropouts(probe, training));
  if (!silent.empty()) wrong(fmt::format("no dropout of {}", fmt::join(silent, ", ")));
  if (finding.note.empty()) {
    finding.note = fmt::format("{} at embedding, weights, attention and mlp output", p);
  }
  return finding;
}

Result<Finding> CheckDropoutMean(Probe& probe) {
  const double p = probe.config().dropout;
  if (p == 0) return NoDropout();
  const DropoutArgs dropout{p, {probe.seed, 0, kDropoutStream}};
  const auto standard_errors = [&](std::span<const float> x) {
    double sum = 0;
    for (const float value : x) sum += value;
    const auto n = static_cast<double>(x.size());
    return std::pair(sum / n, std::abs(sum / n - 1) / std::sqrt(p / (1 - p) / n));
  };
  std::vector<float> ones(1 << 16, 1.0f);
  probe.model.kernels().dropout(ones.data(), static_cast<int64_t>(ones.size()), 0, dropout);
  const auto [mean, away] = standard_errors(ones);

  // Rows of weights with dropout still sum to 1 in the mean. Their variance is at most that of one
  // weight.
  HEED_ASSIGN(std::vector<LayerAttention> layers, probe.Attentions());
  layers[0].SetValues([](int64_t, int64_t, int64_t) { return 1; });
  layers[0].args.dropout = dropout;
  probe.model.kernels().attention_forward(layers[0].args);
  std::vector<float> sums;
  for (size_t i = 0; i < layers[0].z.size(); i += probe.config().head_dim) {
    sums.push_back(layers[0].z[i]);
  }
  const auto [row_mean, rows_away] = standard_errors(sums);
  Finding finding{Worse(away, rows_away), kStandardErrors};
  finding.note = fmt::format("means {:.4f} of ones, {:.4f} of rows of weights; in standard errors",
                             mean, row_mean);
  return finding;
}

Result<Finding> CheckGradient(Probe& probe) {
  if (probe.config().n_embd < 4) {
    return NotApplicable("norms over so few channels jump, so that differences mean nothing");
  }
  const Batch batch = SmallBatch(probe, 2, 21);
  const Kernels& kernels = probe.model.kernels();
  HEED_TRY(probe.LossAndBackward(kernels, batch.tokens, batch.targets, batch.B, 0));
  const double whole = GradientNorm(kernels, probe.model.parameters());
  std::vector<Parameter*> all;
  for (Parameter& p : probe.model.parameters().all()) all.push_back(&p);
  Finding finding{0, 1e-2};
  HEED_ASSIGN(finding.value, DirectionalError(probe, batch, all, whole));
  if (probe.large) {
    finding.note = "along the whole gradient only";
    return finding;
  }
  finding.note = fmt::format("{} tensors", all.size());
  for (Parameter* p : all) {
    HEED_ASSIGN(const double error, DirectionalError(probe, batch, {p}, whole));
    if (Worse(finding.value, error) == finding.value) continue;
    finding.value = Worse(finding.value, error);
    finding.note = "worst in " + p->name;
  }
  return finding;
}

namespace {

// The other of the two implementations.
const Kernels& OtherKernels(const Probe& probe) {
  return std::string_view(probe.model.kernels().name) == ReferenceKernels().name
             ? SimdKernels()
             : ReferenceKernels();
}

}  // namespace

Result<Finding> CheckReference(Probe& probe) {
  const Batch batch = SmallBatch(probe, 2, 22);
  Pass pass = probe.model.NewPass(batch.B, static_cast<int64_t>(batch.tokens.size()) / batch.B);
  HEED_ASSIGN(const std::vector<float> own, probe.Logits(pass, batch.tokens));
  pass.kernels = &OtherKernels(probe);
  HEED_ASSIGN(const std::vector<float> other, probe.Logits(pass, batch.tokens));
  Finding finding{RelativeError(own, other), 1e-4};
  finding.note =
      fmt::format("{} against {} kernels", probe.model.kernels().name, pass.kernels->name);
  return finding;
}

Result<Finding> CheckReferenceGradient(Probe& probe) {
  const Batch batch = SmallBatch(probe, 2, 22);
  const ParameterSet& parameters = probe.model.parameters();
  HEED_ASSIGN(const double own, probe.LossAndBackward(probe.model.kernels(), batch.tokens,
                                                      batch.targets, batch.B, 0));
  const std::vector<float> gradients = Gradients(parameters);
  HEED_ASSIGN(const double other,
              probe.LossAndBackward(OtherKernels(probe), batch.tokens, batch.targets, batch.B, 0));
  Finding finding{std::abs(own - other) / std::abs(other), 1e-3};
  finding.note = fmt::format("loss {:.6f}, {:.6f}", own, other);
  const std::vector<float> others = Gradients(parameters);
  double largest = 0;
  for (const float g : others) largest = std::max(largest, std::abs(double(g)));
  int64_t at = 0;
  for (const Parameter& p : parameters.all()) {
    double error = 0, own_largest = 1e-3 * largest;
    for (int64_t i = at; i < at + p.elements; ++i) {
      error = Worse(error, std::abs(double(gradients[i]) - others[i]));
      own_largest = std::max(own_largest, std::abs(double(others[i])));
    }
    at += p.elements;
    if (Worse(finding.value, error / own_largest) == finding.value) continue;
    finding.value = Worse(finding.value, error / own_largest);
    finding.note = "worst in " + p.name;
  }
  return finding;
}

Result<Finding> CheckStartLoss(Probe& probe) {
  if (!probe.fresh) return NotApplicable("these weights were loaded, not drawn");
  const Batch batch = SmallBatch(probe, 8, 23);
  probe.model.Initialize(probe.seed);
  HEED_ASSIGN(const double loss, probe.Loss(batch.tokens, batch.targets, batch.B));
  const double uniform = std::log(static_cast<double>(probe.config().vocab_size));
  // Logits of standard deviation 0.02 sqrt(C) add half their variance to the loss.
  const double variance = 4e-4 * static_cast<double>(probe.config().n_embd);
  Finding finding{std::abs(loss - uniform), 0.1 + variance};
  finding.note =
      fmt::format("loss {:.3f}, ln {} = {:.3f}", loss, probe.config().vocab_size, uniform);
  return finding;
}

Result<Finding> CheckOverfit(Probe& probe) {
  if (probe.config().n_embd < 16) {
    return NotApplicable(
        fmt::format("width {} is too narrow to learn a batch by heart", probe.config().n_embd));
  }
  const int steps = probe.large ? 20 : 60;
  const Batch batch = SmallBatch(probe, 2, 24);
  if (probe.fresh) probe.model.Initialize(probe.seed);
  HEED_TRY(probe.model.parameters().AllocateGradients());
  HEED_ASSIGN(const auto adamw, Adamw::Create(&probe.model.parameters()));
  const AdamwSettings settings{.weight_decay = 0};
  constexpr double kLearningRate = 3e-3;
  const Kernels& kernels = probe.model.kernels();
  double first = 0;
  for (int step = 0; step < steps; ++step) {
    HEED_ASSIGN(const double loss,
                probe.LossAndBackward(kernels, batch.tokens, batch.targets, batch.B, 0));
    if (step == 0) first = loss;
    adamw->Step(kernels, settings, kLearningRate, GradientNorm(kernels, probe.model.parameters()));
  }
  HEED_ASSIGN(const double last, probe.Loss(batch.tokens, batch.targets, batch.B));
  Finding finding{last / first, 0.5};
  finding.note = fmt::format("loss {:.3f} to {:.3f} in {} steps", first, last, steps);
  return finding;
}

Result<Finding> CheckSaveLoad(Probe& probe) {
  HEED_ASSIGN(const ScratchFolder folder, ScratchFolder::Create());
  HEED_TRY(SaveModel(folder.path(), probe.model, nullptr, /*overwrite=*/true));
  HEED_ASSIGN(const LoadedModel loaded, LoadModel(folder.path(), probe.model.kernels()));
  Finding finding;
  for (const Parameter& p : probe.model.parameters().all()) {
    const Parameter* q = loaded.model->parameters().Find(p.name);
    const auto n = static_cast<size_t>(p.elements);
    if (q != nullptr && SameBits({p.data, n}, {q->data, n})) continue;
    ++finding.value;
    finding.note = p.name + " came back changed";
  }
  HEED_ASSIGN(const std::vector<float> before, probe.Logits());
  Probe copy{*loaded.model, probe.seed, false, probe.large, probe.B, probe.T, probe.tokens};
  HEED_ASSIGN(const std::vector<float> after, copy.Logits());
  if (!SameBits(before, after)) {
    ++finding.value;
    finding.note += (finding.note.empty() ? "" : "; ") + std::string("logits differ");
  }
  return finding;
}

Result<Finding> CheckThreads(Probe& probe) {
  const int threads = NumThreads();
  const int64_t B = probe.B, T = probe.T;
  const std::vector<int32_t> targets = probe.Tokens(B * T, 25);
  const auto run = [&](int n) {
    SetNumThreads(n);
    return probe.LossAndBackward(probe.model.kernels(), probe.tokens, targets, B,
                                 probe.config().dropout);
  };
  Finding finding;
  finding.note = "1, 2 and 3 threads";
  Result<double> one = run(1);
  if (one) {
    const std::vector<float> gradients = Gradients(probe.model.parameters());
    for (const int n : {2, 3}) {
      const Result<double> many = run(n);
      if (!many) one = many;
      if (!many || (*many == *one && SameBits(Gradients(probe.model.parameters()), gradients))) {
        continue;
      }
      ++finding.value;
      finding.note = fmt::format("{} threads give other bits than 1", n);
    }
  }
  SetNumThreads(threads);
  if (!one) return tl::make_unexpected(one.error());
  return finding;
}

}  // namespace heed
