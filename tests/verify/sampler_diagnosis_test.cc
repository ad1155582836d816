#include "verify/diagnose/sampler_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "io/file.h"
#include "support/golden.h"
#include "support/planted_dump.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

struct Settings {
  double temperature = 1;
  size_t top_k = 0;
  double top_p = 1;
  double penalty = 1;
};

Numbers Softmax(Numbers z) {
  double sum = 0;
  for (double& x : z) sum += x = std::exp(x);
  for (double& x : z) x /= sum;
  return z;
}

// A sampler written down once more; `fault` is what it gets wrong.
Numbers Sample(const Settings& s, Numbers z, const Numbers& previous, const std::string& fault) {
  const size_t V = z.size();
  std::vector<bool> seen(V);
  for (const double token : previous) {
    if (seen[size_t(token)] || s.penalty == 1) continue;
    seen[size_t(token)] = true;
    double& x = z[size_t(token)];
    x = x > 0 || fault == "repetition_penalty_sign" ? x / s.penalty : x * s.penalty;
  }
  if (fault == "temperature_zero") return Numbers(V, std::nan(""));
  if (fault == "temperature_on_probabilities") z = Softmax(z);
  for (double& x : z) {
    x /= fault == "temperature_twice" ? s.temperature * s.temperature : s.temperature;
  }
  if (s.top_k > 0) {
    Numbers sorted = z;
    std::sort(sorted.rbegin(), sorted.rend());
    const double least = sorted[s.top_k - 1 + (fault == "top_k_off_by_one" ? 1 : 0)];
    for (double& x : z) x = x < least ? -1e300 : x;
  }
  Numbers p = Softmax(z);
  std::vector<size_t> order(V);
  std::iota(order.begin(), order.end(), 0);
  const bool rising = fault == "top_p_ascending";
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return rising ? p[a] < p[b] : p[a] > p[b]; });
  if (s.top_p < 1) {
    double sum = 0, kept = 0;
    for (size_t i = 0; i < V; ++i) {
      double& x = p[order[i]];
      const double before = sum;
      sum += x;
      const bool dropped =
          rising || fault == "top_p_drops_crossing" ? sum > s.top_p : before >= s.top_p;
      if (dropped && i > 0) x = 0;
      kept += x;
    }
    for (double& x : p) x /= kept;
  }
  if (s.top_p == 1 && fault == "top_p_one_is_greedy") {
    p.assign(V, 0);
    p[order[0]] = 1;
  }
  Numbers sorted;
  for (const size_t i : order) sorted.push_back(p[i]);
  return fault == "sort_not_undone" ? sorted : p;
}

// Ten distinct logits without surprises: 1.0, 0.8, 0.6, ... shuffled, one of them negative enough.
Numbers Logits(uint32_t seed, size_t V) {
  Numbers z(V);
  for (size_t i = 0; i < V; ++i) z[i] = 1.5 - 0.25 * double(i);
  std::shuffle(z.begin(), z.end(), std::mt19937(seed));
  return z;
}

TensorSet Set(const Settings& s, const Numbers& z, const Numbers& previous, const Numbers& p,
              DType dtype) {
  const auto V = int64_t(z.size());
  TensorSet set;
  set["logits"] = {{V}, z, dtype};
  set["probabilities"] = {{V}, p, dtype};
  set["previous"] = {{int64_t(previous.size())}, previous, DType::kI64};
  set.settings = {{"temperature", std::to_string(s.temperature)},
                  {"top_k", std::to_string(s.top_k)},
                  {"top_p", std::to_string(s.top_p)},
                  {"repetition_penalty", std::to_string(s.penalty)}};
  return set;
}

Result<Diagnosis> Diagnose(const TensorSet& set) {
  const TensorFile file = set.File();
  return DiagnoseSampler(file, "sampler", {});
}

TEST(SamplerDiagnosisTest, EveryFaultIsNamedAlone) {
  const std::pair<const char*, Settings> kCases[] = {
      {"correct", {.temperature = 0.7, .top_k = 5, .top_p = 0.8}},
      {"correct", {.temperature = 0.7, .penalty = 1.3}},
      {"temperature_twice", {.temperature = 0.7}},
      {"temperature_twice", {.temperature = 0.7, .top_k = 5}},
      {"temperature_on_probabilities", {.temperature = 0.7}},
      {"temperature_zero", {.temperature = 0}},
      {"top_k_off_by_one", {.temperature = 0.7, .top_k = 3}},
      {"top_p_drops_crossing", {.temperature = 0.9, .top_p = 0.6}},
      {"top_p_ascending", {.temperature = 0.9, .top_p = 0.6}},
      {"top_p_one_is_greedy", {.temperature = 0.8}},
      {"sort_not_undone", {.temperature = 0.7, .top_p = 0.9}},
      {"repetition_penalty_sign", {.temperature = 0.8, .penalty = 1.4}},
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      for (const auto& [fault, settings] : kCases) {
        const Numbers z = Logits(seed, 13 + 2 * seed);
        // The last of them has a negative logit.
        const Numbers previous = {double(seed), 4, 4,
                                  double(std::min_element(z.begin(), z.end()) - z.begin())};
        const Numbers p = Sample(settings, z, previous, fault);
        EXPECT_EQ(Finding(Diagnose(Set(settings, z, previous, p, dtype))), fault)
            << NameOf(dtype) << " seed " << seed;
      }
    }
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
  const Settings settings;
  const Numbers z = Logits(2, 11);
  const auto diagnosis =
      Diagnose(Set(settings, z, {1}, Sample(settings, z, {1}, "temperature_twice"), DType::kF32));
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
  EXPECT_THAT(diagnosis->ask_for, testing::Contains("probabilities at temperature 0.7"));
}

// Kimi-Audio PR161: a temperature on log-probabilities, renormalised, is the same distribution.
TEST(FalseAlarm, TemperatureOnLogProbabilitiesIsCorrect) {
  const Settings settings = {.temperature = 0.6};
  const Numbers z = Logits(3, 17);
  Numbers log_p = Softmax(z);
  for (double& x : log_p) x = std::log(x) / settings.temperature;
  EXPECT_EQ(Finding(Diagnose(Set(settings, z, {1}, Softmax(log_p), DType::kF32))), "correct");
}

TEST(SamplerDiagnosisTest, BadDumpsAreRefused) {
  const Settings settings;
  const Numbers z = Logits(1, 9);
  const TensorSet good = Set(settings, z, {1}, Softmax(z), DType::kF32);
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
