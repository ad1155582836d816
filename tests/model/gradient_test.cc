// Gradients and dropout of whole models, for every mix of parts.
#include <gtest/gtest.h>

#include <set>

#include "nn/residual.h"
#include "support/checks.h"

namespace heed {
namespace {

constexpr int64_t kB = 5, kT = 13;

struct Trained {
  std::unique_ptr<Gpt> model;
  std::unique_ptr<Activations> activations;
  double loss = 0;  // mean

  Trained(const ModelConfig& config, const Kernels& kernels)
      : model(NoisyModel(config, kernels)),
        activations(*Activations::Create(*model, kB, kT, /*training=*/true)) {
    EXPECT_TRUE(model->parameters().AllocateGradients());
  }
  // Rows first .. first + B - 1 of the tokens and targets.
  void Backward(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                int64_t first, int64_t B, float scale, bool accumulate) {
    Pass pass = model->NewPass(B, kT);
    pass.training = true;
    pass.accumulate = accumulate;
    const int64_t at = first * kT;
    loss = (accumulate ? loss : 0) + scale * model->LossAndBackward(pass, &tokens[at], &targets[at],
                                                                    scale, activations.get());
  }
};

// The worst tensor's difference, as a share of its largest gradient. A tensor whose true gradient
// is zero (keys' biases without rotation are part of c_attn's, never alone) does not occur.
double WorstGradient(const Gpt& got, const Gpt& want) {
  double worst = 0;
  for (size_t i = 0; i < want.parameters().all().size(); ++i) {
    const Parameter& a = got.parameters().all()[i];
    const Parameter& b = want.parameters().all()[i];
    worst = Worse(worst, RelativeError(std::vector<float>(a.grad, a.grad + a.elements),
                                       std::vector<float>(b.grad, b.grad + b.elements)));
  }
  return worst;
}

class Gradients : public testing::TestWithParam<Mix> {
 protected:
  void SetUp() override {
    tokens_ = RandomTokens(kB * kT, config().vocab_size, 5);
    targets_ = RandomTokens(kB * kT, config().vocab_size, 6);
    // Unequal counts: row 0 counts 2 targets, the others most.
    std::fill_n(targets_.begin() + 2, kT - 2, -1);
    targets_[3 * kT + 4] = -1;
    for (int32_t t : targets_) counted_ += t >= 0;
  }
  const ModelConfig& config() const { return GetParam().config; }
  float scale() const { return 1.0f / static_cast<float>(counted_); }

  std::vector<int32_t> tokens_, targets_;
  int64_t counted_ = 0;
};

TEST_P(Gradients, FastKernelsAgreeWithTheReference) {
  Trained reference(config(), ReferenceKernels());
  reference.Backward(tokens_, targets_, 0, kB, scale(), false);
  OnEveryTarget([&] {
    Trained fast(config(), SimdKernels());
    fast.Backward(tokens_, targets_, 0, kB, scale(), false);
    EXPECT_LT(WorstGradient(*fast.model, *reference.model), 2e-5);
    EXPECT_NEAR(fast.loss, reference.loss, 1e-6 * reference.loss);
  });
}

// Along a random direction of each tensor, by central differences of the loss.
TEST_P(Gradients, AreTheSlopesOfTheLoss) {
  Trained run(config(), SimdKernels());
  run.Backward(tokens_, targets_, 0, kB, scale(), false);
  const Pass pass = run.model->NewPass(kB, kT);
  uint32_t stream = 0;
  for (Parameter& p : run.model->parameters().all()) {
    const std::vector<float> direction = RandomArray(p.elements, stream++);
    double norm = 0, slope = 0, size = 0;
    for (int64_t i = 0; i < p.elements; ++i) {
      norm += double(direction[i]) * direction[i];
      slope += double(direction[i]) * p.grad[i];
      size += double(p.grad[i]) * p.grad[i];
    }
    norm = std::sqrt(norm);
    slope /= norm;
    // A share of the tensor's norm at which the third derivative is small and rounding smaller.
    double weight = 0;
    for (int64_t i = 0; i < p.elements; ++i) weight += double(p.data[i]) * p.data[i];
    const double step = 3e-3 * std::sqrt(weight);
    const std::vector<float> kept(p.data, p.data + p.elements);
    const auto loss_at = [&](double along) {
      for (int64_t i = 0; i < p.elements; ++i) {
        p.data[i] = static_cast<float>(kept[i] + along * direction[i] / norm);
      }
      return scale() *
             run.model->Loss(pass, tokens_.data(), targets_.data(), run.activations.get());
    };
    const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
    std::copy(kept.begin(), kept.end(), p.data);
    // What a random direction sees of the gradient on average.
    const double usual = std::sqrt(size / static_cast<double>(p.elements));
    EXPECT_NEAR(difference, slope, 1e-2 * std::max(std::abs(slope), usual)) << p.name;
  }
}

// Micro-batches with unequal numbers of targets are weighted by them.
TEST_P(Gradients, TwoMicroBatchesAreOneBatch) {
  Trained whole(config(), SimdKernels()), parts(config(), SimdKernels());
  whole.Backward(tokens_, targets_, 0, kB, scale(), false);
  parts.Backward(tokens_, targets_, 0, 2, scale(), false);
  parts.Backward(tokens_, targets_, 2, kB - 2, scale(), true);
  EXPECT_LT(WorstGradient(*parts.model, *whole.model), 5e-6);
  EXPECT_NEAR(parts.loss, whole.loss, 1e-6 * whole.loss);
  // A second pass that does not accumulate leaves nothing of the first.
  parts.Backward(tokens_, targets_, 0, kB, scale(), false);
  EXPECT_EQ(WorstGradient(*parts.model, *whole.model), 0);
}

TEST_P(Gradients, DropoutIsOffInEval) {
  ModelConfig dropped = config();
  dropped.dropout = 0.9;
  const auto eval = [](const Gpt& model, int64_t B, int64_t T) { return model.NewPass(B, T); };
  EXPECT_EQ(EvalDropoutError(dropped, SimdKernels(), eval), 0);
  EXPECT_EQ(EvalDropoutError(dropped, ReferenceKernels(), eval), 0);
}

// Slope of the loss with dropout, its mask held: backward must draw the masks of forward.
TEST_P(Gradients, DropoutMasksOfBackwardAreThoseOfForward) {
  ModelConfig dropped = config();
  dropped.dropout = 0.3;
  Trained run(dropped, SimdKernels());
  Pass pass = run.model->NewPass(kB, kT);
  pass.training = true;
  pass.seed = 9;
  pass.step = 4;
  const auto loss = [&] {
    return scale() * run.model->LossAndBackward(pass, tokens_.data(), targets_.data(), scale(),
                                                run.activations.get());
  };
  const double first = loss();
  EXPECT_EQ(loss(), first);
  Parameter& wte = run.model->parameters().all().front();
  const std::vector<float> grad(wte.grad, wte.grad + wte.elements);
  const std::vector<float> kept(wte.data, wte.data + wte.elements);
  double square = 0, weight = 0;
  for (int64_t i = 0; i < wte.elements; ++i) {
    square += double(grad[i]) * grad[i];
    weight += double(kept[i]) * kept[i];
  }
  // Along the gradient itself: every position and every layer has its part in this slope.
  const double step = 2e-3 * std::sqrt(weight / square);
  const auto loss_at = [&](double along) {
    for (int64_t i = 0; i < wte.elements; ++i) {
      wte.data[i] = static_cast<float>(kept[i] + along * grad[i]);
    }
    return loss();
  };
  const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
  EXPECT_NEAR(difference, square, 1e-2 * square);
  std::copy(kept.begin(), kept.end(), wte.data);
  pass.step = 5;
  EXPECT_NE(loss(), first) << "another step, the same masks";
}

INSTANTIATE_TEST_SUITE_P(Mixes, Gradients, testing::ValuesIn(Mixes()), MixName);

// Kernels that drop at one site only, and note every site that asks.
uint32_t only_site = 0;
std::set<uint32_t> asked;

DropoutArgs OnlyOneSite(DropoutArgs dropout) {
  const uint32_t site = dropout.key.tensor - kDropoutStream;
  if (dropout.p > 0) asked.insert(site);
  if (site != only_site) dropout.p = 0;
  return dropout;
}

Kernels OneSiteKernels() {
  Kernels kernels = ReferenceKernels();
  kernels.dropout = [](float* x, int64_t n, uint64_t first, const DropoutArgs& dropout) {
    ReferenceKernels().dropout(x, n, first, OnlyOneSite(dropout));
  };
  kernels.attention_forward = [](const AttentionArgs<>& args) {
    AttentionArgs<> changed = args;
    changed.dropout = OnlyOneSite(args.dropout);
    ReferenceKernels().attention_forward(changed);
  };
  return kernels;
}

// Dropout of the embedding, of each pattern, behind each attention and each MLP: all of them act.
TEST(LessonRow19, EachSiteAloneChangesTheOutput) {
  for (const Mix& mix : Mixes()) {
    ModelConfig dropped = mix.config;
    dropped.dropout = 0.9;
    const Kernels kernels = OneSiteKernels();
    const auto model = NoisyModel(dropped, kernels);
    const std::vector<int32_t> tokens = RandomTokens(kB * kT, dropped.vocab_size);
    const std::vector<float> eval = FullLogits(*model, tokens, kB);
    auto activations = *Activations::Create(*model, kB, kT, /*training=*/true);
    asked.clear();
    const auto sites = static_cast<uint32_t>(1 + 3 * dropped.n_layer);
    for (only_site = 0; only_site < sites; ++only_site) {
      Pass pass = model->NewPass(kB, kT);
      pass.training = true;
      std::vector<float> logits(eval.size());
      const float* x = model->Forward(pass, tokens.data(), activations.get());
      model->Logits(pass, x, kB * kT, activations.get(), logits.data());
      EXPECT_GT(RelativeError(logits, eval), 1e-2) << mix.name << ", site " << only_site;
    }
    EXPECT_EQ(asked.size(), sites) << mix.name;
    EXPECT_EQ(*asked.rbegin(), sites - 1) << mix.name;
  }
}

// Over many steps the masks that a pass draws average to one, at every site and in the pattern.
TEST(LessonRow25, MasksAverageToOne) {
  constexpr int64_t kN = 256, kSteps = 400, kKeys = 16;
  constexpr double kP = 0.9;
  Pass pass;
  pass.training = true;
  pass.dropout = kP;
  const double deviation = std::sqrt(kP / (1 - kP));  // of one factor
  for (const uint32_t site : {0u, 1u, 6u}) {
    double sum = 0, pattern = 0;
    std::vector<float> q(kKeys, 0), v(kKeys, 1), z(kKeys);
    for (pass.step = 0; pass.step < kSteps; ++pass.step) {
      std::vector<float> x(kN, 1);
      SimdKernels().dropout(x.data(), kN, 0, pass.Dropout(site));
      for (float factor : x) sum += factor;
      // Equal scores: the last query's output is the mean of its keys' factors.
      AttentionArgs<> args{1, kKeys, kKeys, 1, 1, 1, 1.0f};
      args.dropout = pass.Dropout(site);
      args.q = args.k = q.data();
      args.v = v.data();
      args.q_row = args.kv_row = args.kv_head = 1;
      args.z = z.data();
      SimdKernels().attention_forward(args);
      pattern += z.back();
    }
    EXPECT_NEAR(sum / (kN * kSteps), 1, 5 * deviation / std::sqrt(double(kN * kSteps))) << site;
    EXPECT_NEAR(pattern / kSteps, 1, 5 * deviation / std::sqrt(double(kKeys * kSteps))) << site;
  }
}

}  // namespace
}  // namespace heed
