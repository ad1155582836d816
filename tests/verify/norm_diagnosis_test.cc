#include "verify/diagnose/norm_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/planted_norm.h"

namespace heed {
namespace {

std::string FindingOf(const TensorSet& set) {
  const TensorFile file = set.File();
  return Finding(DiagnoseNorm(file, "norm.safetensors", {}));
}

TEST(NormDiagnosisTest, FittedEpsIsTold) {
  PlainNorm right, wrong;
  wrong.eps = 3e-4;
  const NormDump dump(7, DType::kF32, right);
  const TensorFile file =
      dump.Set(DType::kF32, right, wrong.Of(dump.x, dump.weight, dump.bias)).File();
  const auto diagnosis = DiagnoseNorm(file, "norm", {});
  ASSERT_TRUE(diagnosis) << diagnosis.error().Message();
  EXPECT_EQ(diagnosis->explanations.at(0).detail, "eps 0.0003");
}

TEST(NormDiagnosisTest, TwoFaultsAreNamedTogether) {
  PlainNorm right, wrong;
  wrong.unbiased = true;
  wrong.with_bias = false;
  const NormDump dump(5, DType::kF32, right);
  EXPECT_EQ(FindingOf(dump.Set(DType::kF32, right, wrong.Of(dump.x, dump.weight, dump.bias))),
            "norm_unbiased + norm_bias_missing");
}

// Not in the catalogue: the mean is taken twice as large.
TEST(NormDiagnosisTest, UnknownFaultIsNotNamed) {
  PlainNorm right;
  const NormDump dump(5, DType::kF32, right);
  std::vector<double> y = right.Of(dump.x, dump.weight, dump.bias);
  for (size_t i = 0; i < y.size(); ++i) y[i] += 0.05 * std::sin(double(i * i));
  EXPECT_EQ(FindingOf(dump.Set(DType::kF32, right, y)), "unexplained");
}

// Gains near 0 were trained as 1 + weight: no fault.
TEST(NormDiagnosisTest, GainsStoredAroundZeroAreAConvention) {
  PlainNorm right;
  NormDump dump(9, DType::kF32, right);
  for (double& w : dump.weight) w -= 1;
  right.gain_offset = 1;
  EXPECT_EQ(FindingOf(dump.Set(DType::kF32, right, right.Of(dump.x, dump.weight, dump.bias))),
            "correct");
}

// Float32 all the way: rounding is no fault.
TEST(NormDiagnosisTest, Float32ArithmeticIsCorrect) {
  const PlainNorm right;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const NormDump dump(seed, DType::kF32, right);
    std::vector<double> y;
    for (int64_t r = 0; r < right.B * right.T; ++r) {
      float mean = 0, variance = 0;
      for (int64_t c = 0; c < right.C; ++c) mean += float(dump.x[r * right.C + c]);
      mean /= float(right.C);
      for (int64_t c = 0; c < right.C; ++c) {
        const float d = float(dump.x[r * right.C + c]) - mean;
        variance += d * d;
      }
      const float rstd = 1 / std::sqrt(variance / float(right.C) + 1e-5f);
      for (int64_t c = 0; c < right.C; ++c) {
        y.push_back((float(dump.x[r * right.C + c]) - mean) * rstd * float(dump.weight[c]) +
                    float(dump.bias[c]));
      }
    }
    EXPECT_EQ(FindingOf(dump.Set(DType::kF32, right, y)), "correct") << seed;
  }
}

TEST(NormDiagnosisTest, BadDumpsAreRefusedInOneLine) {
  const PlainNorm right;
  const NormDump dump(1, DType::kF32, right);
  const TensorSet good = dump.Set(DType::kF32, right, right.Of(dump.x, dump.weight, dump.bias));
  TensorSet set = good;
  set.tensors.erase("weight");
  EXPECT_THAT(FindingOf(set), testing::HasSubstr("weight"));
  set = good;
  set["weight"].shape = {1, right.C};
  EXPECT_THAT(FindingOf(set), testing::HasSubstr("tensor \"weight\": found [1, 13]"));
  set = good;
  set["x"].values[3] = std::nan("");
  EXPECT_THAT(FindingOf(set), testing::HasSubstr("tensor \"x\": found nan at [0, 0, 3]"));
  set = good;
  set["y"].values[3] = std::nan("");
  EXPECT_THAT(FindingOf(set), testing::HasSubstr("tensor \"y\": found nan at [0, 0, 3]"));
  set = good;
  set.settings["norm_eps"] = "tiny";
  EXPECT_THAT(FindingOf(set), testing::HasSubstr("norm_eps: found 'tiny'"));
}

}  // namespace
}  // namespace heed
