// Whole models whose products are in bfloat16.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace heed {
namespace {

constexpr int64_t kB = 5, kT = 13;

std::unique_ptr<Gpt> Bf16Model(const ModelConfig& config, const Kernels& kernels) {
  auto model = NoisyModel(config, kernels);
  model->set_arithmetic(Arithmetic::kBf16);
  return model;
}

// Sets the gradients of the mean loss, and returns that.
double Backward(Gpt* model) {
  const std::vector<int32_t> tokens = RandomTokens(kB * kT + 1, model->config().vocab_size);
  EXPECT_TRUE(model->parameters().AllocateGradients());
  auto activations = *Activations::Create(*model, kB, kT, /*training=*/true);
  Pass pass = model->NewPass(kB, kT);
  pass.training = true;
  return model->LossAndBackward(pass, tokens.data(), tokens.data() + 1,
                                1.0f / static_cast<float>(kB * kT), activations.get()) /
         static_cast<double>(kB * kT);
}

// |got - want| / |want| over all gradients together.
double GradientError(const Gpt& got, const Gpt& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.parameters().all().size(); ++i) {
    const Parameter& a = got.parameters().all()[i];
    const Parameter& b = want.parameters().all()[i];
    for (int64_t k = 0; k < a.elements; ++k) {
      error += (double(a.grad[k]) - b.grad[k]) * (double(a.grad[k]) - b.grad[k]);
      size += double(b.grad[k]) * b.grad[k];
    }
  }
  return std::sqrt(error / size);
}

class Bf16 : public testing::TestWithParam<Mix> {
 protected:
  const ModelConfig& config() const { return GetParam().config; }
};

// A factor moves by at most 2^-9 of itself, 2^-9 / sqrt(3) or so in the mean, and some twenty
// products follow each other: an error of about sqrt(2 · 20 / 3) · 2^-9 = 0.7 %, and a few times as
// much where the model makes it grow. Without any rounding it would be 1e-6.
TEST_P(Bf16, GradientsAreThoseOfFloat32WithinTheRoundingOfFactors) {
  const auto exact = NoisyModel(config(), ReferenceKernels());
  const double loss = Backward(exact.get());
  OnEveryTarget([&] {
    const auto rounded = Bf16Model(config(), SimdKernels());
    EXPECT_NEAR(Backward(rounded.get()), loss, 1e-2 * loss);
    const double error = GradientError(*rounded, *exact);
    EXPECT_LT(error, 0.04);
    EXPECT_GT(error, 1e-3);
  });
}

int64_t products, products_in_bf16;

void CountProduct(const MatmulArgs<>& args) {
  ++products;
  products_in_bf16 += args.arithmetic == Arithmetic::kBf16;
  SimdKernels().matmul(args);
}

TEST_P(Bf16, EveryProductIsTold) {
  Kernels counting = SimdKernels();
  counting.matmul = CountProduct;
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBf16}) {
    const auto model = NoisyModel(config(), counting);
    model->set_arithmetic(arithmetic);
    products = products_in_bf16 = 0;
    Backward(model.get());
    // Two layers of q, k, v in one or three, output, MLP in two or three, and the head: each
    // forward, and backward to its input and to its weight.
    EXPECT_GE(products, 3 * (2 * 4 + 1));
    EXPECT_EQ(products_in_bf16, arithmetic == Arithmetic::kBf16 ? products : 0);
  }
}

TEST_P(Bf16, PackedWeightsChangeNoBit) {
  OnEveryTarget([&] {
    const auto plain = Bf16Model(config(), SimdKernels());
    const auto rounded = NoisyModel(config(), SimdKernels());
    ASSERT_TRUE(rounded->PackWeights(BlockType::kBF16));
    EXPECT_EQ(rounded->arithmetic(), Arithmetic::kBf16);
    for (const int64_t T : {1, 7, 70}) {
      const std::vector<int32_t> tokens = RandomTokens(kB * T, config().vocab_size);
      EXPECT_TRUE(SameBits(FullLogits(*rounded, tokens, kB), FullLogits(*plain, tokens, kB))) << T;
    }
  });
}

TEST_P(Bf16, CacheAndChunksGiveTheBitsOfTheWholePass) {
  OnEveryTarget([&] {
    const auto model = NoisyModel(config(), SimdKernels());
    ASSERT_TRUE(model->PackWeights(BlockType::kBF16));
    const std::vector<int32_t> tokens = RandomTokens(kB * 70, config().vocab_size);
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>(70, 1), std::vector<int64_t>{3, 64, 3}}) {
      EXPECT_EQ(CacheError(*model, tokens, kB, pieces), 0) << testing::PrintToString(pieces);
    }
  });
}

TEST_P(Bf16, OutputsOfTheLastPositionsAreThoseOfAll) {
  OnEveryTarget([&] {
    const auto model = NoisyModel(config(), SimdKernels());
    ASSERT_TRUE(model->PackWeights(BlockType::kBF16));
    ExpectLastOutputsAreThoseOfAll(*model, 70);
  });
}

// Activations that were planned for float32 hold floats, which products round when they pack them.
TEST_P(Bf16, StoringFactorsRoundedChangesNoLossAndGradientsByTheGelusDerivativeAlone) {
  OnEveryTarget([&] {
    const auto stored = Bf16Model(config(), SimdKernels());
    const auto packed = NoisyModel(config(), SimdKernels());
    ASSERT_TRUE(packed->parameters().AllocateGradients());
    auto activations = *Activations::Create(*packed, kB, kT, /*training=*/true);
    packed->set_arithmetic(Arithmetic::kBf16);
    const std::vector<int32_t> tokens = RandomTokens(kB * kT + 1, config().vocab_size);
    Pass pass = packed->NewPass(kB, kT);
    pass.training = true;
    const double loss =
        packed->LossAndBackward(pass, tokens.data(), tokens.data() + 1,
                                1.0f / static_cast<float>(kB * kT), activations.get()) /
        static_cast<double>(kB * kT);
    EXPECT_EQ(Backward(stored.get()), loss);
    // Words of a row are pairs, so odd widths stay in floats.
    const bool gelu = config().mlp == MlpKind::kGelu && config().n_embd % 2 == 0 &&
                      packed->blocks()[0].mlp.inner % 2 == 0;
    const double error = GradientError(*stored, *packed);
    // Each derivative moves by at most 2^-9 of itself, once for each of two layers.
    EXPECT_LE(error, gelu ? 0x1p-8 : 0);
    EXPECT_EQ(error > 0, gelu) << "whether the derivative was stored";
    const Block& last = packed->blocks().back();
    for (const Parameter* p : {last.mlp.proj.weight, packed->head().weight}) {
      const Parameter* same = stored->parameters().Find(p->name);
      if (config().tied && p == packed->head().weight) continue;  // the embedding's too
      EXPECT_TRUE(SameBits(std::vector<float>(same->grad, same->grad + same->elements),
                           std::vector<float>(p->grad, p->grad + p->elements)))
          << p->name;
    }
  });
}

TEST_P(Bf16, GradientsDoNotDependOnThreads) {
  const auto gradients = [&](int threads) {
    SetNumThreads(threads);
    const auto model = Bf16Model(config(), SimdKernels());
    Backward(model.get());
    std::vector<float> all;
    for (const Parameter& p : model->parameters().all()) {
      all.insert(all.end(), p.grad, p.grad + p.elements);
    }
    SetNumThreads(HardwareThreads());
    return all;
  };
  const std::vector<float> alone = gradients(1);
  for (const int threads : {2, 3}) EXPECT_TRUE(SameBits(gradients(threads), alone)) << threads;
}

INSTANTIATE_TEST_SUITE_P(All, Bf16, testing::ValuesIn(Mixes()), MixName);

}  // namespace
}  // namespace heed
