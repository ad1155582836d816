#include "inspect/attention_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/mixes.h"

namespace heed {
namespace {

TEST(LessonRow29, RowsOfEveryMapSumToOneAndHideWhatIsLater) {
  for (const Mix& mix : Mixes()) {
    const auto model = *Gpt::Create(mix.config, SimdKernels());
    model->Initialize(7);
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8};
    const auto maps = ReadAttentionMaps(*model, tokens);
    ASSERT_TRUE(maps) << maps.error().Message();
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t head = 0; head < mix.config.n_head; ++head) {
        const auto map = maps->Map(layer, head);
        for (int64_t t = 0; t < maps->T; ++t) {
          double sum = 0;
          for (int64_t s = 0; s < maps->T; ++s) {
            const float p = map[t * maps->T + s];
            if (s > t) {
              EXPECT_EQ(p, 0) << mix.name;
            }
            sum += p;
          }
          EXPECT_NEAR(sum, 1, 1e-6) << mix.name;
        }
      }
    }
  }
}

TEST(AttentionMaps, AnAveragedModelLooksAtAllAlike) {
  const Mix mix = Mixes().back();
  ASSERT_EQ(mix.config.model, ModelKind::kAveraged);
  const auto model = *Gpt::Create(mix.config, SimdKernels());
  model->Initialize(7);
  const auto maps = *ReadAttentionMaps(*model, std::vector<int32_t>{3, 1, 4, 1});
  const HeadHabits h = HabitsOf(maps, 1, 2);
  EXPECT_NEAR(h.entropy, (std::log(2) + std::log(3) + std::log(4)) / 4, 1e-6);
  EXPECT_NEAR(h.self, (1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4) / 4, 1e-6);
  EXPECT_NEAR(h.previous, (1.0 / 2 + 1.0 / 3 + 1.0 / 4) / 3, 1e-6);
  EXPECT_NEAR(h.first, h.previous, 1e-6);
  EXPECT_NEAR(h.distance, (0 + 0.5 + 1 + 1.5) / 4, 1e-6);
}

// A key that doubles the product with the query: by hand, as in the two-token lesson.
TEST(AttentionMaps, AreTheModelsOwnSoftmax) {
  ModelConfig config;
  config.n_layer = config.n_head = 1;
  config.n_embd = 2;
  config.block_size = 2;
  config.vocab_size = 2;
  config.position = Position::kNone;
  config.bias = false;
  const auto model = *Gpt::Create(config, SimdKernels());
  // The norm turns (a, b) with a > b into (1, -1) and (a, b) with a < b into (-1, 1).
  const float wte[] = {1, -1, -1, 1}, gain[] = {1, 1};
  std::copy_n(wte, 4, model->parameters().Find("wte.weight")->data);
  std::copy_n(gain, 2, model->parameters().Find("h.0.ln_1.weight")->data);
  // q = x, k = x: scores are x·x' / sqrt(2) = ±2 / sqrt(2).
  float* qkv = model->parameters().Find("h.0.attn.c_attn.weight")->data;  // [2, 6]
  qkv[0] = qkv[2] = qkv[7] = qkv[9] = 1;
  const auto maps = *ReadAttentionMaps(*model, std::vector<int32_t>{0, 1});
  const auto map = maps.Map(0, 0);
  EXPECT_EQ(map[0], 1);
  EXPECT_EQ(map[1], 0);
  EXPECT_NEAR(map[2], 1 / (1 + std::exp(4 / std::sqrt(2))), 1e-5);
}

TEST(AttentionMaps, RefuseTextBeyondTheContext) {
  const auto model = *Gpt::Create(Mixes()[0].config, SimdKernels());
  const auto refused = ReadAttentionMaps(*model, std::vector<int32_t>(81, 1));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().Message(), testing::HasSubstr("81 tokens, expected 1 to 80"));
}

}  // namespace
}  // namespace heed
