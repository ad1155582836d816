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
  config.n_embd = *rc::gen::inRange<int64_t>(1, 17);
  config.norm = *rc::gen::element(NormKind::kLayerNorm, NormKind::kRmsNorm);
  // The layer norm of one or two channels keeps their signs alone, and its slope is rounding.
  if (config.norm == NormKind::kLayerNorm) config.n_embd = std::max<int64_t>(config.n_embd, 3);
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
  std::vector<float> Gradient(const Parameter& p) const {
    return std::vector<float>(p.grad, p.grad + p.elements);
  }
};

// The worst tensor's difference as a share of its largest gradient; numbers below 1e-6 of the
// model's largest are not told from 0, for some tensors' true gradient is.
double WorstGradient(const Gpt& got, const Gpt& want) {
  double largest = 0, worst = 0;
  for (const Parameter& p : want.parameters().all()) {
    for (int64_t i = 0; i < p.elements; ++i)
      largest = std::max(largest, std::abs(double(p.grad[i])));
  }
  for (size_t n = 0; n < want.parameters().all().size(); ++n) {
    const Parameter& a = got.parameters().all()[n];
    const Parameter& b = want.parameters().all()[n];
    double error = 0, size = 0.01 * largest;
    for (int64_t i = 0; i < a.elements; ++i) {
      error = Worse(error, std::abs(double(a.grad[i]) - b.grad[i]));
      size = std::max(size, std::abs(double(b.grad[i])));
    }
    if (error > 0) worst = Worse(worst, error / size);
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
    EXPECT_EQ(products, 0);
  });
  RC_LOG() << "gradients " << gradient_error << ", loss " << loss_error << " of " << loss;
  RC_ASSERT(loss_error <= 2e-6 * (loss + 1));
  RC_ASSERT(gradient_error <= 2e-5);
}

}  // namespace
}  // namespace heed
