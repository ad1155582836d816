// The first loss and the spread of the first weights.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace heed {
namespace {

// A model that knows nothing says ln(V).
TEST(LessonRow16, FirstLossIsTheLogOfTheVocabulary) {
  for (const char* name :
       {"femto", "pico", "gpt-nano", "gpt-micro", "shakespeare-cpu", "gpt-mini"}) {
    for (const int64_t V : {65, 257, 5003}) {
      ModelConfig config = FindPreset(name)->model;
      config.vocab_size = V;
      config.block_size = 64;
      const auto model = *Gpt::Create(config, SimdKernels());
      model->Initialize(3);
      constexpr int64_t kB = 4, kT = 64;
      const auto activations = *Activations::Create(*model, kB, kT, /*training=*/false);
      const std::vector<int32_t> tokens = RandomTokens(kB * kT + 1, V);
      const double loss =
          model->Loss(model->NewPass(kB, kT), tokens.data(), tokens.data() + 1, activations.get()) /
          (kB * kT);
      EXPECT_NEAR(loss, std::log(double(V)), 0.02 * std::log(double(V))) << name << " " << V;
    }
  }
}

// GPT-2's rule, by the tensors' names in either family.
TEST(LessonRow13, DeviationsAreThoseOfGpt2) {
  std::vector<Mix> mixes = Mixes();
  for (Mix& mix : mixes) {
    mix.config.n_layer = 3;
    mix.config.vocab_size = 211;
    const auto model = *Gpt::Create(mix.config, SimdKernels());
    model->Initialize(7);
    int residual = 0;
    for (const Parameter& p : model->parameters().all()) {
      SCOPED_TRACE(mix.name + ": " + p.name);
      if (p.shape.size() == 1) {
        const float want = p.name.ends_with(".weight") ? 1.0f : 0.0f;
        EXPECT_EQ(std::count(p.data, p.data + p.elements, want), p.elements);
        continue;
      }
      const bool to_stream = p.name.ends_with("c_proj.weight") ||
                             p.name.ends_with("o_proj.weight") ||
                             p.name.ends_with("down_proj.weight");
      residual += to_stream;
      const double want = to_stream ? 0.02 / std::sqrt(2.0 * 3) : 0.02;
      double sum = 0, square = 0;
      for (int64_t i = 0; i < p.elements; ++i) {
        sum += p.data[i];
        square += double(p.data[i]) * p.data[i];
      }
      const auto n = static_cast<double>(p.elements);
      const double mean = sum / n, deviation = std::sqrt(square / n - mean * mean);
      EXPECT_NEAR(deviation, want, 5 * want / std::sqrt(2 * n));
      EXPECT_NEAR(mean, 0, 5 * want / std::sqrt(n));
    }
    EXPECT_EQ(residual, 2 * 3) << mix.name;
  }
}

TEST(Initialisation, SeedsGiveTheSameWeightsAndOtherSeedsOthers) {
  const ModelConfig config = Mixes()[2].config;
  const auto a = *Gpt::Create(config, SimdKernels()), b = *Gpt::Create(config, SimdKernels());
  a->Initialize(1);
  b->Initialize(1);
  const Parameter& p = *a->parameters().Find("model.layers.0.mlp.up_proj.weight");
  const Parameter& q = *b->parameters().Find(p.name);
  EXPECT_TRUE(SameBits(p.data, q.data, p.elements));
  b->Initialize(2);
  EXPECT_FALSE(SameBits(p.data, q.data, p.elements));
  // No two tensors start with the same numbers.
  EXPECT_FALSE(SameBits(p.data, a->parameters().Find("model.layers.1.mlp.up_proj.weight")->data,
                        p.elements));
}

}  // namespace
}  // namespace heed
