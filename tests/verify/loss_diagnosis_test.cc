#include "verify/diagnose/loss_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/planted_dump.h"

namespace heed {
namespace {

constexpr int64_t kB = 3, kT = 9, kV = 17;

struct LossDump {
  DType dtype;
  std::vector<double> logits, labels;

  LossDump(uint32_t seed, DType type, bool ignored) : dtype(type) {
    Draw draw(seed, type);
    logits = draw.Normal(kB * kT * kV, 2);
    labels = draw.Ids(kB * kT, kV);
    if (!ignored) return;
    for (const int64_t at : {0, 1, 2, 3, 14, 15}) labels[at] = -1;
  }

  double Nll(int64_t b, int64_t t, int64_t label) const {
    const double* row = &logits[(b * kT + t) * kV];
    double sum = 0;
    for (int64_t i = 0; i < kV; ++i) sum += std::exp(row[i]);
    return std::log(sum) - row[label];
  }
  int64_t Label(int64_t b, int64_t t) const { return int64_t(labels[b * kT + t]); }

  // The losses of row b when position t is scored on the label at t + shift.
  std::vector<double> Row(int64_t b, int64_t shift) const {
    std::vector<double> row;
    for (int64_t t = 0; t < kT; ++t) {
      const int64_t at = t + shift;
      if (at >= 0 && at < kT && Label(b, at) >= 0) row.push_back(Nll(b, t, Label(b, at)));
    }
    return row;
  }

  static double Mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / double(values.size());
  }
  double MeanAt(int64_t shift) const {
    std::vector<double> all;
    for (int64_t b = 0; b < kB; ++b) {
      for (const double value : Row(b, shift)) all.push_back(value);
    }
    return Mean(all);
  }

  Result<Diagnosis> Of(double reported, const char* name = "targets",
                       const char* number = "loss") const {
    TensorSet set;
    set["logits"] = {{kB, kT, kV}, logits, dtype};
    set[name] = {{kB, kT}, labels, DType::kI64};
    set[number] = {{1}, {reported}, DType::kF32};
    const TensorFile file = set.File();
    return DiagnoseLoss(file, "loss", {});
  }
  std::string FindingOf(double reported, const char* name = "targets",
                        const char* number = "loss") const {
    return Finding(Of(reported, name, number));
  }
};

class LossDiagnosisTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, LossDiagnosisTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST_P(LossDiagnosisTest, ShiftsAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const bool ignored : {false, true}) {
      const LossDump dump(seed, GetParam(), ignored);
      EXPECT_EQ(dump.FindingOf(dump.MeanAt(0)), "correct");
      EXPECT_EQ(dump.FindingOf(dump.MeanAt(-1)), "labels_not_shifted");
      EXPECT_EQ(dump.FindingOf(dump.MeanAt(1)), "labels_shifted_twice");
    }
    const LossDump tokens(seed, GetParam(), false);
    EXPECT_EQ(tokens.FindingOf(tokens.MeanAt(1), "tokens"), "correct");
    EXPECT_EQ(tokens.FindingOf(tokens.MeanAt(0), "tokens"), "labels_not_shifted");
    EXPECT_EQ(tokens.FindingOf(tokens.MeanAt(2), "tokens"), "labels_shifted_twice");
  }
}

TEST_P(LossDiagnosisTest, AveragingFaultsAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const LossDump dump(seed, GetParam(), true);
    double sum = 0, means = 0, exponentials = 0, counted = 0;
    for (int64_t b = 0; b < kB; ++b) {
      for (int64_t t = 0; t < kT; ++t) {
        const int64_t label = dump.Label(b, t);
        if (label >= 0) sum += dump.Nll(b, t, label);
        counted += dump.Nll(b, t, std::max<int64_t>(label, 0)) / double(kB * kT);
      }
      means += LossDump::Mean(dump.Row(b, 0)) / double(kB);
      exponentials += std::exp(LossDump::Mean(dump.Row(b, 0))) / double(kB);
    }
    EXPECT_EQ(dump.FindingOf(sum / double(kB * kT)), "ignored_targets_counted");
    EXPECT_EQ(dump.FindingOf(counted), "ignored_targets_counted");
    EXPECT_EQ(dump.FindingOf(means), "accumulation_token_mean");
    EXPECT_EQ(dump.FindingOf(std::log(exponentials)), "perplexity_averaging");
    EXPECT_EQ(dump.FindingOf(exponentials, "targets", "perplexity"), "perplexity_averaging");
    EXPECT_EQ(dump.FindingOf(sum), "loss_not_averaged");
    EXPECT_EQ(dump.FindingOf(dump.MeanAt(0) / std::log(2.0)), "loss_in_bits");
    EXPECT_EQ(dump.FindingOf(std::exp(dump.MeanAt(0)), "targets", "perplexity"), "correct");
  }
}

TEST(LossDiagnosisHiddenTest, RarerWaysToAverageAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const LossDump dump(seed, DType::kF32, true);
    double sum = 0, means = 0, exponentials = 0;
    for (int64_t b = 0; b < kB; ++b) {
      const std::vector<double> row = dump.Row(b, 0);
      sum += LossDump::Mean(row) * double(row.size());
      means += LossDump::Mean(row);
      exponentials += std::exp(LossDump::Mean(row)) / double(kB);
    }
    EXPECT_EQ(dump.FindingOf(means), "accumulation_not_averaged");
    EXPECT_EQ(dump.FindingOf(sum / double(kB)), "loss_not_averaged");
    EXPECT_EQ(dump.FindingOf(exponentials), "perplexity_averaging");
    const LossDump tokens(seed, DType::kF32, false);
    EXPECT_EQ(tokens.FindingOf(tokens.MeanAt(1) * double(kT - 1) / double(kT), "tokens"),
              "perplexity_averaging");
  }
}

TEST(LossDiagnosisHiddenTest, AStopTokenThatIsIgnoredIsNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const LossDump dump(seed, DType::kF32, false);
    const int64_t stop = dump.Label(1, 2);
    std::vector<double> kept;
    for (int64_t b = 0; b < kB; ++b) {
      for (int64_t t = 0; t < kT; ++t) {
        const int64_t label = dump.Label(b, t);
        if (label != stop) kept.push_back(dump.Nll(b, t, label));
      }
    }
    EXPECT_EQ(dump.FindingOf(LossDump::Mean(kept)), "stop_token_ignored");
  }
}

// Equal counts hide a mean of means: correct, and what would show it is asked for.
TEST(LossDiagnosisHiddenTest, EqualCountsHideAMeanOfMeans) {
  const LossDump dump(1, DType::kF32, false);
  const auto diagnosis = dump.Of(dump.MeanAt(0));
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
  EXPECT_THAT(diagnosis->seen, testing::Contains(testing::HasSubstr("accumulation_token_mean")));
  EXPECT_THAT(diagnosis->ask_for,
              testing::Contains(testing::HasSubstr("unequal numbers of targets")));
}

TEST(LossDiagnosisHiddenTest, AnotherNumberIsUnexplained) {
  const LossDump dump(1, DType::kF32, true);
  EXPECT_EQ(dump.FindingOf(dump.MeanAt(0) * 1.0321), "unexplained");
}

TEST(LossDiagnosisHiddenTest, BadDumpsAreRefused) {
  LossDump dump(1, DType::kF32, true);
  dump.labels[5] = kV;
  EXPECT_THAT(dump.FindingOf(2), testing::HasSubstr("tensor \"targets\": found 17 at [0, 5]"));
  for (double& label : dump.labels) label = -1;
  EXPECT_THAT(dump.FindingOf(2), testing::HasSubstr("no target that counts"));
  EXPECT_THAT(dump.FindingOf(2, "targets", "los"), testing::HasSubstr("loss"));
}

}  // namespace
}  // namespace heed
