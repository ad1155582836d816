#include "verify/diagnose/loss_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/planted_loss.h"

namespace heed {
namespace {

Result<Diagnosis> Diagnose(const LossDump& dump, double reported, const char* name = "targets",
                           const char* number = "loss") {
  const TensorFile file = dump.Set(reported, name, number).File();
  return DiagnoseLoss(file, "loss", {});
}
std::string FindingOf(const LossDump& dump, double reported, const char* name = "targets",
                      const char* number = "loss") {
  return Finding(Diagnose(dump, reported, name, number));
}

TEST(LossDiagnosisTest, RightLossesAreCorrect) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const LossDump tokens(seed, dtype, false), dump(seed, dtype, true);
      EXPECT_EQ(FindingOf(tokens, tokens.MeanAt(0)), "correct");
      EXPECT_EQ(FindingOf(tokens, tokens.MeanAt(1), "tokens"), "correct");
      EXPECT_EQ(FindingOf(dump, dump.MeanAt(0)), "correct");
      EXPECT_EQ(FindingOf(dump, std::exp(dump.MeanAt(0)), "targets", "perplexity"), "correct");
    }
  }
}

TEST(LossDiagnosisTest, RarerWaysToAverageAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const LossDump dump(seed, DType::kF32, true);
    const auto rows = double(dump.B);
    const double sum = dump.MeanAt(0) * double(dump.Targets());
    EXPECT_EQ(FindingOf(dump, dump.MeanOfMeans() * rows), "accumulation_not_averaged");
    EXPECT_EQ(FindingOf(dump, sum / rows), "loss_not_averaged");
    EXPECT_EQ(FindingOf(dump, std::log(dump.MeanOfExponentials())), "perplexity_averaging");
    EXPECT_EQ(FindingOf(dump, dump.MeanOfExponentials()), "perplexity_averaging");
    const LossDump tokens(seed, DType::kF32, false);
    EXPECT_EQ(
        FindingOf(tokens, tokens.MeanAt(1) * double(tokens.T - 1) / double(tokens.T), "tokens"),
        "perplexity_averaging");
  }
}

// Equal counts hide a mean of means: correct, and what would show it is asked for.
TEST(LossDiagnosisTest, EqualCountsHideAMeanOfMeans) {
  const LossDump dump(1, DType::kF32, false);
  const auto diagnosis = Diagnose(dump, dump.MeanAt(0));
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
  EXPECT_THAT(diagnosis->seen, testing::Contains(testing::HasSubstr("accumulation_token_mean")));
  EXPECT_THAT(diagnosis->ask_for,
              testing::Contains(testing::HasSubstr("unequal numbers of targets")));
}

TEST(LossDiagnosisTest, AnotherNumberIsUnexplained) {
  const LossDump dump(1, DType::kF32, true);
  EXPECT_EQ(FindingOf(dump, dump.MeanAt(0) * 1.0321), "unexplained");
}

TEST(LossDiagnosisTest, BadDumpsAreRefused) {
  LossDump dump(1, DType::kF32, true);
  dump.labels[5] = double(dump.V);
  EXPECT_THAT(FindingOf(dump, 2), testing::HasSubstr("tensor \"targets\": found 17 at [0, 5]"));
  for (double& label : dump.labels) label = -1;
  EXPECT_THAT(FindingOf(dump, 2), testing::HasSubstr("no target that counts"));
  EXPECT_THAT(FindingOf(dump, 2, "targets", "los"), testing::HasSubstr("loss"));
}

}  // namespace
}  // namespace heed
