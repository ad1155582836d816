// What holds of every model, whatever its weights: causality, independence of the batch, of the
// cache and of the thread count to the last bit, and the symmetries of rotation and of grouping.
#include <gtest/gtest.h>

#include "base/parallel.h"
#include "support/checks.h"

namespace heed {
namespace {

class Properties : public testing::TestWithParam<Mix> {
 protected:
  const ModelConfig& config() const { return GetParam().config; }
};

TEST_P(Properties, NoPositionSeesALaterToken) {
  constexpr int64_t kB = 5;
  OnEveryTarget([&] {
    for (const int64_t T : {13, 70}) {
      const std::vector<int32_t> tokens = RandomTokens(kB * T, config().vocab_size);
      const auto model = NoisyModel(config(), SimdKernels());
      EXPECT_EQ(CausalityBreaks(*model, tokens, kB), 0) << T;
      ScaleScores(model.get(), 10);
      EXPECT_EQ(CausalityBreaks(*model, tokens, kB), 0) << T << ", sharp";
    }
  });
  const auto model = NoisyModel(config(), ReferenceKernels());
  EXPECT_EQ(CausalityBreaks(*model, RandomTokens(2 * 13, config().vocab_size), 2), 0);
}

using LessonRow22 = Properties;

// The course's test: of three tokens the third changes.
TEST_P(LessonRow22, TheThirdOfThreeMovesItsOwnLogitsAlone) {
  const int64_t V = config().vocab_size;
  const auto model = NoisyModel(config(), SimdKernels());
  const std::vector<float> before = FullLogits(*model, {5, 17, 30}, 1);
  const std::vector<float> after = FullLogits(*model, {5, 17, 2}, 1);
  EXPECT_TRUE(SameBits(before.data(), after.data(), 2 * V));
  EXPECT_FALSE(SameBits(&before[2 * V], &after[2 * V], V));
}

TEST_P(Properties, ARowOfABatchIsThatRowAlone) {
  constexpr int64_t kB = 5;
  const int64_t V = config().vocab_size;
  OnEveryTarget([&] {
    for (const int64_t T : {13, 70}) {
      const auto model = NoisyModel(config(), SimdKernels());
      const std::vector<int32_t> tokens = RandomTokens(kB * T, V);
      const std::vector<float> batch = FullLogits(*model, tokens, kB);
      for (int64_t b = 0; b < kB; ++b) {
        const std::vector<int32_t> one(&tokens[b * T], &tokens[b * T] + T);
        const std::vector<float> alone = FullLogits(*model, one, 1);
        EXPECT_TRUE(SameBits(alone.data(), &batch[b * T * V], T * V)) << T << " row " << b;
      }
    }
  });
}

using LessonRow24 = Properties;

TEST_P(LessonRow24, CacheAndChunksGiveTheBitsOfTheWholePass) {
  constexpr int64_t kB = 5;
  const std::vector<std::vector<int64_t>> short_pieces = {
      std::vector<int64_t>(7, 1), {3, 4}, {1, 1, 5}, {6, 1}, {7}};
  const std::vector<std::vector<int64_t>> long_pieces = {{63, 1, 1, 5}, {3, 64, 3}, {69, 1}};
  OnEveryTarget([&] {
    const auto model = NoisyModel(config(), SimdKernels());
    const std::vector<int32_t> few = RandomTokens(kB * 7, config().vocab_size);
    const std::vector<int32_t> many = RandomTokens(kB * 70, config().vocab_size);
    for (const auto& pieces : short_pieces) {
      EXPECT_EQ(CacheError(*model, few, kB, pieces), 0) << testing::PrintToString(pieces);
    }
    for (const auto& pieces : long_pieces) {
      EXPECT_EQ(CacheError(*model, many, kB, pieces), 0) << testing::PrintToString(pieces);
    }
  });
  const auto model = NoisyModel(config(), ReferenceKernels());
  const std::vector<int32_t> tokens = RandomTokens(2 * 7, config().vocab_size);
  for (const auto& pieces : short_pieces) {
    EXPECT_EQ(CacheError(*model, tokens, 2, pieces), 0) << testing::PrintToString(pieces);
  }
}

TEST_P(Properties, OutputsOfTheLastPositionsAreThoseOfAll) {
  OnEveryTarget([&] {
    const auto model = NoisyModel(config(), SimdKernels());
    for (const int64_t T : {2, 7, 70}) ExpectLastOutputsAreThoseOfAll(*model, T);
  });
  ExpectLastOutputsAreThoseOfAll(*NoisyModel(config(), ReferenceKernels()), 7);
}

// Five updates of training: losses, the last gradients, the final weights.
std::vector<float> TrainingBits(const ModelConfig& config, int threads, int64_t B, int64_t T,
                                bool recompute = false) {
  SetNumThreads(threads);
  const auto model = NoisyModel(config, SimdKernels());
  EXPECT_TRUE(model->parameters().AllocateGradients());
  auto optimizer = *Adamw::Create(&model->parameters());
  auto activations = *Activations::Create(*model, B, T, /*training=*/true, recompute);
  std::vector<float> bits;
  for (uint32_t step = 0; step < 5; ++step) {
    const std::vector<int32_t> tokens = RandomTokens(B * T + 1, config.vocab_size, step);
    Pass pass = model->NewPass(B, T);
    pass.training = true;
    pass.step = step;
    const double loss = model->LossAndBackward(pass, tokens.data(), tokens.data() + 1,
                                               1.0f / static_cast<float>(B * T), activations.get());
    const double norm = GradientNorm(model->kernels(), model->parameters());
    for (double x : {loss, norm}) {
      bits.resize(bits.size() + 2);
      std::memcpy(&bits[bits.size() - 2], &x, sizeof(x));
    }
    optimizer->Step(model->kernels(), {}, 1e-2, norm);
  }
  for (const Parameter& p : model->parameters().all()) {
    bits.insert(bits.end(), p.grad, p.grad + p.elements);
    bits.insert(bits.end(), p.data, p.data + p.elements);
  }
  SetNumThreads(1);
  return bits;
}

TEST_P(Properties, TrainingIsTheSameForEveryThreadCount) {
  ModelConfig dropped = config();
  dropped.dropout = 0.1;
  for (const auto& [B, T] : {std::pair<int64_t, int64_t>{5, 13}, {9, 70}}) {
    const std::vector<float> one = TrainingBits(dropped, 1, B, T);
    EXPECT_TRUE(SameBits(one, TrainingBits(dropped, 2, B, T))) << B << "x" << T;
    EXPECT_TRUE(SameBits(one, TrainingBits(dropped, 3, B, T))) << B << "x" << T;
  }
}

TEST_P(Properties, RecomputingActivationsChangesNoBit) {
  ModelConfig deep = config();
  deep.dropout = 0.1;
  deep.n_layer = 3;
  EXPECT_TRUE(SameBits(TrainingBits(deep, 1, 5, 13), TrainingBits(deep, 1, 5, 13, true)));
  const auto model = NoisyModel(deep, SimdKernels());
  const auto all = Activations::Outline(*model, 5, 13, /*training=*/true);
  const auto inputs = Activations::Outline(*model, 5, 13, /*training=*/true, /*recompute=*/true);
  EXPECT_LT(inputs->plan().bytes(), all->plan().bytes());
}

TEST_P(Properties, ParameterCountIsWhatIsAllocated) {
  const auto model = *Gpt::Create(config(), SimdKernels());
  EXPECT_EQ(ParameterCount(config()), model->parameters().elements());
  int64_t sum = 0;
  for (const Parameter& p : model->parameters().all()) sum += p.elements;
  EXPECT_EQ(sum, model->parameters().elements());
}

INSTANTIATE_TEST_SUITE_P(Mixes, Properties, testing::ValuesIn(Mixes()), MixName);
INSTANTIATE_TEST_SUITE_P(Mixes, LessonRow22, testing::ValuesIn(Mixes()), MixName);
INSTANTIATE_TEST_SUITE_P(Mixes, LessonRow24, testing::ValuesIn(Mixes()), MixName);

// Work of this size is cut into pieces on every layer; smaller models run on one thread anyway.
TEST(ThreadCount, ALargerModelTrainsToTheSameBits) {
  for (const NormKind norm : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    ModelConfig c;
    c.n_layer = 2;
    c.n_head = 6;
    c.n_kv_head = 3;
    c.n_embd = 192;
    c.block_size = 140;
    c.vocab_size = 311;
    c.dropout = 0.1;
    c.norm = norm;
    if (norm == NormKind::kRmsNorm) {
      c.position = Position::kRope;
      c.mlp = MlpKind::kSwiglu;
      c.bias = false;
    }
    ASSERT_TRUE(c.Resolve());
    const std::vector<float> one = TrainingBits(c, 1, 4, 140);
    EXPECT_TRUE(SameBits(one, TrainingBits(c, 2, 4, 140)));
    EXPECT_TRUE(SameBits(one, TrainingBits(c, 3, 4, 140)));
  }
}

// Scores depend on differences of positions alone.
TEST(LessonRow18, RotaryPositionsMayStartAnywhere) {
  int compared = 0;
  for (const Mix& mix : Mixes()) {
    if (mix.config.position != Position::kRope) continue;
    ModelConfig zero = mix.config, one = mix.config;
    zero.rope_first_position = 0;
    one.rope_first_position = 1;
    // The family, and with it names and initial weights, may change with the first position.
    const auto from_zero = NoisyModel(zero, SimdKernels());
    const auto from_one = NoisyModel(one, SimdKernels());
    if (from_zero->config().family() != from_one->config().family()) continue;
    const std::vector<int32_t> tokens = RandomTokens(3 * 70, zero.vocab_size);
    const std::vector<float> a = FullLogits(*from_zero, tokens, 3);
    const std::vector<float> b = FullLogits(*from_one, tokens, 3);
    EXPECT_LT(RelativeError(b, a), 1e-5) << mix.name;
    EXPECT_FALSE(SameBits(a, b)) << mix.name << ": the first position changed nothing";
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

// out [C, H·D] from in [C, Hkv·D]: every key/value head g times.
void RepeatHeads(const float* in, int64_t rows, int64_t in_row, int64_t out_row, int64_t Hkv,
                 int64_t g, int64_t D, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < Hkv * g; ++h) {
      std::copy_n(in + r * in_row + h / g * D, D, out + r * out_row + h * D);
    }
  }
}

TEST(LessonRow17, GroupedQueriesAreManyHeadsWithTiedKeys) {
  for (const Mix& mix : Mixes()) {
    const ModelConfig& c = mix.config;
    if (c.n_kv_head == c.n_head || c.family() == Family::kLlama) continue;
    if (c.model == ModelKind::kAveraged) continue;  // it projects no queries and keys
    ModelConfig wide = c;
    wide.n_kv_head = c.n_head;
    const auto grouped = NoisyModel(c, SimdKernels());
    const auto many = NoisyModel(wide, SimdKernels());
    ASSERT_EQ(grouped->parameters().all().size(), many->parameters().all().size());
    const int64_t D = c.head_dim, q = c.n_head * D, kv = c.n_kv_head * D,
                  g = c.n_head / c.n_kv_head;
    for (size_t i = 0; i < many->parameters().all().size(); ++i) {
      const Parameter& from = grouped->parameters().all()[i];
      const Parameter& to = many->parameters().all()[i];
      ASSERT_EQ(from.name, to.name);
      if (from.name.find("c_attn") == std::string::npos) {
        std::copy_n(from.data, from.elements, to.data);
        continue;
      }
      const int64_t rows = from.elements / (q + 2 * kv);
      RepeatHeads(from.data, rows, q + 2 * kv, 3 * q, c.n_head, 1, D, to.data);
      RepeatHeads(from.data + q, rows, q + 2 * kv, 3 * q, c.n_kv_head, g, D, to.data + q);
      RepeatHeads(from.data + q + kv, rows, q + 2 * kv, 3 * q, c.n_kv_head, g, D, to.data + 2 * q);
    }
    const std::vector<int32_t> tokens = RandomTokens(5 * 13, c.vocab_size);
    EXPECT_LT(RelativeError(FullLogits(*many, tokens, 5), FullLogits(*grouped, tokens, 5)), 2e-6)
        << mix.name;
  }
}

}  // namespace
}  // namespace heed
