// The baselines that are made of the GPT's own layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/gpt.h"
#include "support/mixes.h"
#include "verify/probe.h"

namespace heed {
namespace {

ModelConfig PreviousToken(int64_t vocab_size, int64_t width) {
  ModelConfig config;
  config.model = ModelKind::kBigramEmbedding;
  config.n_layer = 0;
  config.n_head = 1;
  config.n_embd = width;
  config.block_size = 4;
  config.vocab_size = vocab_size;
  config.position = Position::kNone;
  config.bias = config.tied = false;
  return config;
}

// Vocabulary cat, sat, ran; after cat (v = [1, 0]) comes ran.
TEST(LessonRow03, ThePreviousTokensModel) {
  const auto made = Gpt::Create(PreviousToken(3, 2), SimdKernels());
  ASSERT_TRUE(made) << made.error().Message();
  Gpt& model = **made;
  EXPECT_EQ(model.parameters().elements(), 2 * 3 * 2);
  EXPECT_EQ(ParameterCount(model.config()), 2 * 3 * 2);
  Parameter* v = model.parameters().Find("wte.weight");
  Parameter* u = model.parameters().Find("lm_head.weight");
  v->data[0] = 1;
  const float U[] = {0, 0, 2, 0, 1, 1};
  std::copy_n(U, 6, u->data);
  ASSERT_TRUE(model.parameters().AllocateGradients());
  const auto activations = *Activations::Create(model, 1, 1, /*training=*/true);
  const int32_t cat = 0, ran = 2;
  const Pass pass = model.NewPass(1, 1);
  float logits[3];
  model.Logits(pass, model.Forward(pass, &cat, activations.get()), 1, activations.get(), logits);
  EXPECT_THAT(logits, testing::ElementsAre(0, 2, 1));
  EXPECT_NEAR(model.LossAndBackward(pass, &cat, &ran, 1, activations.get()), 1.40761, 5e-6);
  EXPECT_NEAR(v->grad[0], 0.57521, 5e-6);
  EXPECT_NEAR(v->grad[1], -0.75527, 5e-6);
  // The logits' gradient times v = [1, 0].
  const double want[] = {0.09003, 0.66524, -0.75527};
  for (int w = 0; w < 3; ++w) {
    EXPECT_NEAR(u->grad[2 * w], want[w], 5e-6);
    EXPECT_EQ(u->grad[2 * w + 1], 0);
  }
}

ModelConfig Averaged(Position position) {
  ModelConfig config;
  config.model = ModelKind::kAveraged;
  config.n_layer = 2;
  config.n_head = 6;
  config.n_kv_head = 2;
  config.n_embd = 24;
  config.block_size = 16;
  config.vocab_size = 11;
  config.position = position;
  return config;
}

TEST(LessonRow05, AnAveragedModelsHeadsAreMeansOfTheValuesSoFar) {
  const auto model = *Gpt::Create(Averaged(Position::kLearned), SimdKernels());
  model->Initialize(3);
  EXPECT_EQ(model->parameters().elements(), ParameterCount(model->config()));
  const int64_t T = 9, H = 6, group = 3, D = 4, row = (H + 2 * 2) * D;
  const std::vector<int32_t> tokens = {4, 1, 7, 7, 0, 10, 3, 2, 5};
  const auto taps = Taps::Run(*model, model->NewPass(1, T), tokens);
  ASSERT_TRUE(taps);
  const auto qkv = taps->Find("h.1.attn.qkv"), z = taps->Find("h.1.attn.merged");
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t c = 0; c < H * D; ++c) {
      const int64_t column = (H + 2 + c / D / group) * D + c % D;
      double mean = 0;
      for (int64_t s = 0; s <= t; ++s) mean += qkv[s * row + column];
      EXPECT_NEAR(z[t * H * D + c], mean / static_cast<double>(t + 1), 1e-7);
    }
  }
}

// "dog bites man" and "bites dog man": what the last word's heads see is the same mean.
TEST(LessonRow05, WithoutPositionsTheOrderIsLost) {
  const auto last_heads = [](ModelKind kind, const std::vector<int32_t>& tokens) {
    ModelConfig config = Averaged(Position::kNone);
    config.model = kind;
    const auto model = *Gpt::Create(config, SimdKernels());
    model->Initialize(3);
    const auto taps = Taps::Run(*model, model->NewPass(1, 3), tokens);
    const auto merged = taps->Find("h.0.attn.merged");
    return std::vector<float>(merged.end() - 24, merged.end());
  };
  for (const ModelKind kind : {ModelKind::kAveraged, ModelKind::kGpt}) {
    // Without positions, attention too sums over a set: it is the causal mask that orders it.
    const auto one = last_heads(kind, {1, 4, 7}), other = last_heads(kind, {4, 1, 7});
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-7);
  }
}

std::string Refusal(ModelConfig config) {
  const Status status = config.Resolve();
  return status ? "" : status.error().Message();
}

TEST(BaselineKinds, RefuseWhatTheyAreWithout) {
  using testing::HasSubstr;
  EXPECT_THAT(Refusal(Averaged(Position::kRope)), HasSubstr("position: found rope"));
  ModelConfig config = PreviousToken(3, 2);
  EXPECT_EQ(Refusal(config), "");
  config.n_layer = 1;
  EXPECT_THAT(Refusal(config), HasSubstr("n_layer: found 1, expected 0"));
  config = PreviousToken(3, 2);
  config.tied = true;
  EXPECT_THAT(Refusal(config), HasSubstr("tied: found true"));
  config.model = ModelKind::kNgram;
  EXPECT_THAT(Refusal(config), HasSubstr("model: found ngram"));
  config = Averaged(Position::kNone);
  config.n_layer = 0;
  EXPECT_THAT(Refusal(config), HasSubstr("n_layer: found 0, expected 1 to 1024"));
}

TEST(WithContext, KeepsEveryNumberAndAddsPositions) {
  ModelConfig config = Averaged(Position::kLearned);
  config.model = ModelKind::kGpt;
  const auto model = *Gpt::Create(config, SimdKernels());
  model->Initialize(3);
  const auto longer = WithContext(*model, 40, 0.2, 5);
  ASSERT_TRUE(longer) << longer.error().Message();
  EXPECT_EQ((*longer)->config().block_size, 40);
  EXPECT_EQ((*longer)->config().dropout, 0.2);
  for (const Parameter& p : model->parameters().all()) {
    const Parameter* q = (*longer)->parameters().Find(p.name);
    EXPECT_EQ(std::vector(p.data, p.data + p.elements), std::vector(q->data, q->data + p.elements))
        << p.name;
  }
  const Parameter* wpe = (*longer)->parameters().Find("wpe.weight");
  EXPECT_NE(wpe->data[16 * 24], 0);
  const auto shorter = *WithContext(**longer, 16, 0, 5);
  EXPECT_EQ(shorter->parameters().Find("wpe.weight")->elements, 16 * 24);
}

}  // namespace
}  // namespace heed
