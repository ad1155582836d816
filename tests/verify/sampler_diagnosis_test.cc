#include "verify/diagnose/sampler_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/file.h"
#include "support/golden.h"
#include "support/planted_sampler.h"

namespace heed {
namespace {

using Numbers = PlantedSampler::Numbers;

Result<Diagnosis> Diagnose(const TensorSet& set) {
  const TensorFile file = set.File();
  return DiagnoseSampler(file, "sampler", {});
}

TEST(SamplerDiagnosisTest, RightOnesAreCorrect) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      for (const PlantedSampler& sampler :
           {PlantedSampler{.temperature = 0.7, .top_k = 5, .top_p = 0.8},
            PlantedSampler{.temperature = 0.7, .penalty = 1.3}}) {
        EXPECT_EQ(Finding(Diagnose(sampler.Random(seed, dtype, "correct"))), "correct");
      }
    }
  }
}

TEST(SamplerDiagnosisTest, ATemperatureThatIsTakenTwiceIsNamedBesideAFilter) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const PlantedSampler sampler{.temperature = 0.7, .top_k = 5};
    EXPECT_EQ(Finding(Diagnose(sampler.Random(seed, DType::kF32, "temperature_twice"))),
              "temperature_twice");
  }
}

TEST(SamplerDiagnosisTest, GoldenProbabilitiesAreCorrect) {
  const nlohmann::json golden = nlohmann::json::parse(
      *ReadFile(std::string(HEED_GOLDEN_DIR) + "/sampling.json", size_t{1} << 20));
  for (const nlohmann::json& c : golden["cases"]) {
    const auto z = c["logits"].get<Numbers>(), p = c["probabilities"].get<Numbers>();
    TensorSet set;
    set["logits"] = {{int64_t(z.size())}, z, DType::kF32};
    set["probabilities"] = {{int64_t(z.size())}, p, DType::kF64};
    for (const char* name : {"temperature", "top_k", "top_p", "min_p"}) {
      set.settings[name] = c[name].dump();
    }
    EXPECT_EQ(Finding(Diagnose(set)), "correct") << c["temperature"];
  }
}

// At temperature 1 its faults change nothing: correct, with what would show them.
TEST(SamplerDiagnosisTest, TemperatureOneHidesItsFaults) {
  const PlantedSampler sampler;
  const Numbers z = PlantedSampler::Logits(2, 11);
  const auto diagnosis =
      Diagnose(sampler.Set(z, {1}, sampler.Sample(z, {1}, "temperature_twice"), DType::kF32));
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
  EXPECT_THAT(diagnosis->ask_for, testing::Contains("probabilities at temperature 0.7"));
}

// Kimi-Audio PR161: a temperature on log-probabilities, renormalised, is the same distribution.
TEST(FalseAlarm, TemperatureOnLogProbabilitiesIsCorrect) {
  const PlantedSampler sampler = {.temperature = 0.6};
  const Numbers z = PlantedSampler::Logits(3, 17);
  Numbers log_p = PlantedSampler::Softmax(z);
  for (double& x : log_p) x = std::log(x) / sampler.temperature;
  EXPECT_EQ(Finding(Diagnose(sampler.Set(z, {1}, PlantedSampler::Softmax(log_p), DType::kF32))),
            "correct");
}

TEST(SamplerDiagnosisTest, BadDumpsAreRefused) {
  const PlantedSampler sampler;
  const Numbers z = PlantedSampler::Logits(1, 9);
  const TensorSet good = sampler.Set(z, {1}, PlantedSampler::Softmax(z), DType::kF32);
  TensorSet set = good;
  set.settings["top_p"] = "1.5";
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("top_p: found 1.5"));
  set = good;
  set["previous"].values = {9};
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("\"previous\": found 9 at [0]"));
  set = good;
  set["probabilities"].shape = {3, 3};
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("\"probabilities\": found [3, 3]"));
}

}  // namespace
}  // namespace heed
