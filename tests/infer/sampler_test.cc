#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace heed {
namespace {

SamplingSettings Plain(double temperature) {
  SamplingSettings settings;
  settings.temperature = temperature;
  return settings;
}

TEST(Sampler, GoldenDistributions) {
  std::ifstream in(std::string(HEED_GOLDEN_DIR) + "/sampling.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  ASSERT_FALSE(golden["cases"].empty());
  for (const auto& c : golden["cases"]) {
    SamplingSettings settings{c["temperature"], c["top_k"], c["top_p"], c["min_p"], 1.0};
    const std::vector<float> logits = c["logits"];
    const std::vector<double> want = c["probabilities"];
    const std::vector<double> got = SamplingProbabilities(settings, logits, {});
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
  }
}

// The course's own numbers for logits 2, 1, 0.
TEST(LessonRow04, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = {2, 1, 0};
  const auto expect = [&](double temperature, std::vector<double> want) {
    const auto got = SamplingProbabilities(Plain(temperature), logits, {});
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 5e-5) << temperature;
  };
  expect(1, {0.6652, 0.2447, 0.0900});
  expect(0.5, {0.8668, 0.1173, 0.0159});
  expect(2, {0.5065, 0.3072, 0.1863});
}

TEST(LessonRow04, ZeroTemperatureIsTheFirstOfTheLargest) {
  const std::vector<float> logits = {1, 3, 3, -2};
  EXPECT_EQ(SamplingProbabilities(Plain(0), logits, {}), (std::vector<double>{0, 1, 0, 0}));
  // Very small temperatures approach it without overflow.
  const auto tiny = SamplingProbabilities(Plain(1e-300), std::vector<float>{1, 3, 2}, {});
  EXPECT_EQ(tiny, (std::vector<double>{0, 1, 0}));
}

// The token that crosses p stays: dropping it is a fault that others had.
TEST(Sampler, TopPKeepsTheTokenThatCrosses) {
  std::vector<float> logits;
  for (double p : {0.5, 0.3, 0.15, 0.05}) logits.push_back(static_cast<float>(std::log(p)));
  SamplingSettings settings;
  settings.top_p = 0.6;
  const auto got = SamplingProbabilities(settings, logits, {});
  EXPECT_NEAR(got[0], 0.5 / 0.8, 1e-6);
  EXPECT_NEAR(got[1], 0.3 / 0.8, 1e-6);
  EXPECT_EQ(got[2], 0);
  settings.top_p = std::nextafter(1.0, 0.0);
  EXPECT_GT(SamplingProbabilities(settings, logits, {})[3], 0);
}

TEST(Sampler, TopKOfOneIsGreedyAndTiesStay) {
  SamplingSettings settings;
  settings.top_k = 1;
  EXPECT_EQ(SamplingProbabilities(settings, std::vector<float>{0, 2, 1}, {}),
            (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(SamplingProbabilities(settings, std::vector<float>{2, 2, 1}, {}),
            (std::vector<double>{0.5, 0.5, 0}));
}

// A negative logit is multiplied, a positive divided; each once, however often the token was seen.
TEST(Sampler, RepetitionPenaltyLowersBothSigns) {
  SamplingSettings settings;
  settings.repetition_penalty = 2;
  const std::vector<float> logits = {2, -2, 1};
  const std::vector<int32_t> previous = {0, 1, 1, 0};
  const auto got = SamplingProbabilities(settings, logits, previous);
  const double sum = std::exp(1.0) + std::exp(-4.0) + std::exp(1.0);
  EXPECT_NEAR(got[0], std::exp(1.0) / sum, 1e-12);
  EXPECT_NEAR(got[1], std::exp(-4.0) / sum, 1e-12);
}

TEST(Sampler, DrawFollowsTheDistribution) {
  const std::vector<double> p = {0.1, 0, 0.6, 0.3};
  std::vector<int> counts(4);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[Draw(p, RandomUniform53({11, 0, kSampleStream}, i))];
  EXPECT_EQ(counts[1], 0);
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(counts[i], kDraws * p[i], 5 * std::sqrt(kDraws * p[i] * (1 - p[i])) + 1e-9);
  }
  EXPECT_EQ(Draw(p, std::nextafter(1.0, 0.0)), 3);
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double bad : {-0.1, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(Plain(bad).Validate()) << bad;
  }
  for (double bad : {0.0, -1.0, 1.1, nan}) {
    SamplingSettings settings;
    settings.top_p = bad;
    EXPECT_FALSE(settings.Validate()) << bad;
  }
  for (double bad : {-0.1, 1.0, nan}) {
    SamplingSettings settings;
    settings.min_p = bad;
    EXPECT_FALSE(settings.Validate()) << bad;
  }
  for (double bad : {0.0, -1.0, nan}) {
    SamplingSettings settings;
    settings.repetition_penalty = bad;
    EXPECT_FALSE(settings.Validate()) << bad;
  }
  EXPECT_TRUE(Plain(0).Validate());
}

}  // namespace
}  // namespace heed
