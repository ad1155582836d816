#include "eval/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/mixes.h"

namespace heed {
namespace {

std::vector<int32_t> SomeTokens(int64_t n, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>(RandomBelow({5, 0, kTextStream}, i, vocab_size)));
  }
  return tokens;
}

// Silences key/value head `head` of a layer at its source: the columns of v give 0.
void SilenceValues(const Attention& attention, int64_t head) {
  const int64_t D = attention.head_dim;
  const bool apart = attention.qkv.size() == 3;
  const Linear& values = attention.qkv.back();
  const int64_t first = (apart ? 0 : values.out - attention.kv_width()) + head * D;
  for (int64_t d = first; d < first + D; ++d) {
    for (int64_t i = 0; i < values.in; ++i) {
      values.weight->data[values.out_in ? d * values.in + i : i * values.out + d] = 0;
    }
    if (values.bias != nullptr) values.bias->data[d] = 0;
  }
}

TEST(Ablation, AHeadWithoutValuesIsWorthNothingAndTheModelStays) {
  for (const Mix& mix : Mixes()) {
    const auto model = *Gpt::Create(mix.config, SimdKernels());
    model->Initialize(7);
    for (Parameter& p : model->parameters().all()) {
      for (int64_t i = 0; i < p.elements && p.decayed(); ++i) p.data[i] *= 8;
    }
    const ModelConfig& c = model->config();
    SilenceValues(model->blocks()[1].attention, 0);
    std::vector<std::vector<float>> before;
    for (const Parameter& p : model->parameters().all()) {
      before.emplace_back(p.data, p.data + p.elements);
    }
    const auto ablation = AblateHeads(model.get(), SomeTokens(200, c.vocab_size));
    ASSERT_TRUE(ablation) << ablation.error().Message();
    EXPECT_EQ(ablation->tokens, 199);
    ASSERT_EQ(ablation->change.size(), static_cast<size_t>(c.n_layer * c.n_head));
    const int64_t group = c.n_head / c.n_kv_head;
    for (int64_t head = 0; head < c.n_layer * c.n_head; ++head) {
      const double change = ablation->change[head];
      if (head >= c.n_head && head < c.n_head + group) {
        EXPECT_EQ(change, 0) << mix.name << " " << head;
      } else {
        EXPECT_GT(std::abs(change), 1e-6) << mix.name << " " << head;
      }
    }
    size_t at = 0;
    for (const Parameter& p : model->parameters().all()) {
      EXPECT_EQ(before[at++], std::vector<float>(p.data, p.data + p.elements)) << p.name;
    }
  }
}

TEST(Ablation, RefusesWhatCannotBePredicted) {
  ModelConfig config = Mixes()[0].config;
  const auto model = *Gpt::Create(config, SimdKernels());
  const auto refused = AblateHeads(model.get(), SomeTokens(1, 37));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().Message(), testing::HasSubstr("found 1 token,"));
}

}  // namespace
}  // namespace heed
