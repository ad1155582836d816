// Training passes with one sequence in each lane, against the operations over rows: for every
// part that a narrow model may have, on every instruction set.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/checks.h"

namespace heed {
namespace {

int64_t products = 0;  // of matrices: the sign that operations over rows ran

Kernels CountingKernels() {
  Kernels kernels = SimdKernels();
  kernels.matmul = [](const MatmulArgs<>& args) {
    ++products;
    SimdKernels().matmul(args);
  };
  return kernels;
}

struct NarrowCase {
  ModelConfig config;
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens, targets;
  int64_t counted = 0;

  float scale() const { return 1.0f / static_cast<float>(std::max<int64_t>(counted, 1)); }
};

// A model of random parts, and a batch in which some targets do not count.
NarrowCase AnyCase() {
  NarrowCase c;
  ModelConfig& config = c.config;
  config.n_layer = *rc::gen::inRange<int64_t>(1, 4);
  config.n_kv_head = *rc::gen::inRange<int64_t>(1, 4);
  config.n_head = config.n_kv_head * *rc::gen::inRange<int64_t>(1, 4);
  config.head_dim = *rc::gen::inRange<int64_t>(1, 6);
  config.position = *rc::gen::element(Position::kLearned, Position::kSinusoidal, Position::kRope,
                                      Position::kNone);
  if (config.position == Position::kRope) config.head_dim *= 2;
  config.n_embd = *rc::gen::inRange<int64_t>(3, 17);
  config.norm = *rc::gen::element(NormKind::kLayerNorm, NormKind::kRmsNorm);
  // So that the norms of a few channels, which may lie close, do not magnify rounding. Two channels
  // less their mean are one number and its negative: what is left of a gradient there is rounding.
  config.norm_eps = 0.1;
  config.n_inner = *rc::gen::inRange<int64_t>(1, 40);
  config.mlp = *rc::gen::element(MlpKind::kGelu, MlpKind::kSwiglu);
  config.rope_pairing = *rc::gen::element(RopePairing::kHalf, RopePairing::kInterleaved);
  config.bias = *rc::gen::arbitrary<bool>();
  config.tied = *rc::gen::arbitrary<bool>();
  config.vocab_size = *rc::gen::inRange<int64_t>(1, 40);
  config.block_size = 20;
  c.B = *rc::gen::inRange<int64_t>(8, 40);
  c.T = *rc::gen::inRange<int64_t>(1, 20);
  EXPECT_TRUE(config.Resolve());
  const auto seed = *rc::gen::inRange<uint64_t>(0, 1000);
  c.tokens = RandomTokens(c.B * c.T, config.vocab_size, seed);
  c.targets = RandomTokens(c.B * c.T, config.vocab_size, seed + 1);
  for (int64_t i = 0; i < c.B * c.T; ++i) {
    if (RandomBelow({seed, 3, 0}, i, 5) == 0) c.targets[i] = -1;
    c.counted += c.targets[i] >= 0;
  }
  return c;
}

struct Trained {
  std::unique_ptr<Gpt> model;
  std::unique_ptr<Activations> activations;

  Trained(const NarrowCase& c, const Kernels& kernels)
      : model(NoisyModel(c.config, kernels)),
        activations(*Activations::Create(*model, c.B, c.T, /*training=*/true)) {
    EXPECT_TRUE(model->parameters().AllocateGradients());
  }
  double Backward(const NarrowCase& c, bool accumulate = false) {
    Pass pass = model->NewPass(c.B, c.T);
    pass.training = true;
    pass.accumulate = accumulate;
    return model->LossAndBackward(pass, c.tokens.data(), c.targets.data(), c.scale(),
                                  activations.get());
  }
};

// The worst tensor's difference as a share of its largest gradient, or of a hundredth of the
// model's where it has none to speak of.
double WorstGradient(const Gpt& got, const Gpt& want) {
  double largest = 0, worst = 0;
  for (const Parameter& p : want.parameters().all()) {
    for (int64_t i = 0; i < p.elements; ++i) {
      largest = std::max(largest, std::abs(double(p.grad[i])));
    }
  }
  for (size_t n = 0; n < want.parameters().all().size(); ++n) {
    const Parameter& a = got.parameters().all()[n];
    const Parameter& b = want.parameters().all()[n];
    double error = 0, size = std::max(0.01 * largest, 1e-4);
    for (int64_t i = 0; i < a.elements; ++i) {
      error = Worse(error, std::abs(double(a.grad[i]) - b.grad[i]));
      size = std::max(size, std::abs(double(b.grad[i])));
    }
    worst = Worse(worst, error / size);
  }
  return worst;
}

RC_GTEST_PROP(Narrow, AgreesWithTheReferenceForAnyModel, ()) {
  const NarrowCase c = AnyCase();
  Trained reference(c, ReferenceKernels());
  const double loss = reference.Backward(c);
  const Kernels kernels = CountingKernels();
  double gradient_error = 0, loss_error = 0;
  OnEveryTarget([&] {
    products = 0;
    Trained narrow(c, kernels);
    loss_error = Worse(loss_error, std::abs(narrow.Backward(c) - loss));
    const Pass pass = narrow.model->NewPass(c.B, c.T);
    loss_error =
        Worse(loss_error, std::abs(narrow.model->Loss(pass, c.tokens.data(), c.targets.data(),
                                                      narrow.activations.get()) -
                                   loss));
    gradient_error = Worse(gradient_error, WorstGradient(*narrow.model, *reference.model));
    // Again on top: everything doubles.
    narrow.Backward(c, /*accumulate=*/true);
    for (Parameter& p : narrow.model->parameters().all()) {
      for (int64_t i = 0; i < p.elements; ++i) p.grad[i] /= 2;
    }
    gradient_error = Worse(gradient_error, WorstGradient(*narrow.model, *reference.model));
    RC_ASSERT(products == 0);
  });
  Kernels over_rows = SimdKernels();
  over_rows.narrow = nullptr;
  Trained rows(c, over_rows);
  rows.Backward(c);
  // What float32 makes of this model, which may be ill conditioned.
  const double usual = WorstGradient(*rows.model, *reference.model);
  RC_LOG() << "gradients " << gradient_error << ", loss " << loss_error << " of " << loss;
  RC_ASSERT(loss_error <= 2e-6 * (loss + 1));
  RC_ASSERT(gradient_error <= 2e-5 + 4 * usual);
}

// The golden batch several times over, so that it fills lanes, and the last group in part.
TEST(Narrow, GoldenGradients) {
  constexpr int64_t kTimes = 9;
  const Kernels kernels = CountingKernels();
  for (const char* name : {"gpt2-femto", "gpt2-pico"}) {
    OnEveryTarget([&] {
      GoldenRun run(name, kernels);
      NarrowCase c{run.model->config(), kTimes * run.B, run.T, {}, {}, kTimes * run.counted};
      for (int64_t i = 0; i < kTimes; ++i) {
        c.tokens.insert(c.tokens.end(), run.tokens.begin(), run.tokens.end());
        c.targets.insert(c.targets.end(), run.targets.begin(), run.targets.end());
      }
      run.activations = *Activations::Create(*run.model, c.B, c.T, /*training=*/true);
      Pass pass = run.model->NewPass(c.B, c.T);
      pass.training = true;
      products = 0;
      const double loss = run.model->LossAndBackward(pass, c.tokens.data(), c.targets.data(),
                                                     c.scale(), run.activations.get());
      EXPECT_EQ(products, 0);
      EXPECT_LT(ShareOf(loss * c.scale(), run.golden.Doubles("expect.loss")[0]), kForwardBound);
      for (const Parameter& p : run.model->parameters().all()) {
        const std::vector<float> got(p.grad, p.grad + p.elements);
        EXPECT_LT(RelativeError(got, run.golden.Doubles("grad." + p.name)), kGradientBound)
            << name << " " << p.name;
      }
    });
  }
}

TEST(Narrow, NotANumberReachesTheLoss) {
  NarrowCase c;
  c.config.n_embd = 8;
  c.config.n_head = 2;
  c.config.vocab_size = 12;
  c.config.block_size = 5;
  ASSERT_TRUE(c.config.Resolve());
  c.B = 9, c.T = 5, c.counted = c.B * c.T;
  c.tokens = RandomTokens(c.counted, 12, 1);
  c.targets = RandomTokens(c.counted, 12, 2);
  OnEveryTarget([&] {
    Trained narrow(c, SimdKernels());
    EXPECT_TRUE(std::isfinite(narrow.Backward(c)));
    for (Parameter& p : narrow.model->parameters().all()) {
      const float kept = p.data[0];
      p.data[0] = NAN;
      EXPECT_TRUE(std::isnan(narrow.Backward(c))) << p.name;
      p.data[0] = kept;
    }
  });
}

// A batch of five pieces, the last one short.
TEST(Narrow, BitsDoNotDependOnThreads) {
  NarrowCase c;
  c.config = FindPreset("pico")->model;
  c.config.vocab_size = 30;
  c.config.block_size = 32;
  c.config.dropout = 0;
  ASSERT_TRUE(c.config.Resolve());
  c.B = 70, c.T = 32, c.counted = c.B * c.T;
  c.tokens = RandomTokens(c.counted, 30, 1);
  c.targets = RandomTokens(c.counted, 30, 2);
  const auto bits = [&](int threads) {
    SetNumThreads(threads);
    Trained narrow(c, SimdKernels());
    std::vector<float> all(2);
    for (const bool accumulate : {false, true}) {
      const double loss = narrow.Backward(c, accumulate);
      std::memcpy(all.data(), &loss, sizeof(loss));
      for (const Parameter& p : narrow.model->parameters().all()) {
        all.insert(all.end(), p.grad, p.grad + p.elements);
      }
    }
    SetNumThreads(1);
    return all;
  };
  const std::vector<float> one = bits(1);
  EXPECT_TRUE(SameBits(one, bits(2)));
  EXPECT_TRUE(SameBits(one, bits(3)));
}

// What has no lanes: dropout in training, bfloat16, a window, averages, wide models, few sequences.
TEST(Narrow, OtherPassesRunOverRows) {
  const Kernels kernels = CountingKernels();
  const auto runs_over_rows = [&](const std::function<void(NarrowCase*)>& change,
                                  Arithmetic arithmetic = Arithmetic::kF32) {
    NarrowCase c;
    c.config = FindPreset("pico")->model;
    c.config.vocab_size = 30;
    c.config.block_size = 16;
    c.config.dropout = 0;
    c.B = 20, c.T = 16;
    change(&c);
    EXPECT_TRUE(c.config.Resolve());
    c.counted = c.B * c.T;
    c.tokens = RandomTokens(c.counted, c.config.vocab_size, 1);
    c.targets = RandomTokens(c.counted, c.config.vocab_size, 2);
    Trained run(c, kernels);
    run.model->set_arithmetic(arithmetic);
    products = 0;
    run.Backward(c);
    return products > 0;
  };
  const auto nothing = [](NarrowCase*) {};
  EXPECT_FALSE(runs_over_rows(nothing));
  EXPECT_TRUE(runs_over_rows(nothing, Arithmetic::kBf16));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->config.dropout = 0.1; }));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->config.sliding_window = 4; }));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->config.model = ModelKind::kAveraged; }));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->config.n_embd = 48; }));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->config.vocab_size = 5000; }));
  EXPECT_TRUE(runs_over_rows([](NarrowCase* c) { c->B = 3; }));
}

}  // namespace
}  // namespace heed
