#include "verify/diagnose/norm_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/planted_dump.h"

namespace heed {
namespace {

// A norm written down once more, with one thing to get wrong at each step.
struct PlainNorm {
  int64_t rows = 6, C = 13;
  bool centre = true;
  double eps = 1e-5;
  bool unbiased = false, eps_outside = false, float_cancels = false;
  double gain_offset = 0;
  bool with_gain = true, with_bias = true;
  std::function<double(double)> cast = [](double x) { return x; };

  std::vector<double> Of(const std::vector<double>& x, const std::vector<double>& weight,
                         const std::vector<double>& bias) const {
    std::vector<double> y;
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < C; ++c) mean += centre ? x[r * C + c] / double(C) : 0;
      for (int64_t c = 0; c < C; ++c) variance += std::pow(x[r * C + c] - mean, 2);
      variance /= double(unbiased ? C - 1 : C);
      if (float_cancels) {
        float sum = 0, squares = 0;
        for (int64_t c = 0; c < C; ++c) {
          sum += float(x[r * C + c]);
          squares += float(x[r * C + c]) * float(x[r * C + c]);
        }
        variance = squares / float(C) - (sum / float(C)) * (sum / float(C));
      }
      const double root = eps_outside ? std::sqrt(variance) + eps : std::sqrt(variance + eps);
      for (int64_t c = 0; c < C; ++c) {
        double value = cast((x[r * C + c] - mean) / root);
        if (with_gain) value *= weight[c] + gain_offset;
        y.push_back(value + (with_bias ? bias[c] : 0));
      }
    }
    return y;
  }
};

struct NormDump {
  std::vector<double> x, weight, bias;

  NormDump(uint32_t seed, DType dtype, const PlainNorm& plain, double mean = 0.2) {
    Draw draw(seed, dtype);
    x = draw.Normal(plain.rows * plain.C, 1, mean);
    for (int64_t c = 0; c < plain.C; ++c) x[2 * plain.C + c] *= 0x1p-8;  // a row of low variance
    weight = draw.Normal(plain.C, 0.2, 1);
    bias = draw.Normal(plain.C, 0.3);
  }

  TensorSet Set(DType dtype, const PlainNorm& plain, const std::vector<double>& y) const {
    TensorSet set;
    set["x"] = {{2, plain.rows / 2, plain.C}, x, dtype};
    set["weight"] = {{plain.C}, weight, dtype};
    if (plain.centre) set["bias"] = {{plain.C}, bias, dtype};
    set["y"] = {{2, plain.rows / 2, plain.C}, y, dtype};
    set.settings = {{"kind", plain.centre ? "layernorm" : "rmsnorm"}, {"norm_eps", "1e-05"}};
    return set;
  }
};

std::string FindingOf(const TensorSet& set) {
  const TensorFile file = set.File();
  return Finding(DiagnoseNorm(file, "norm.safetensors", {}));
}

using Plant = std::function<void(PlainNorm*)>;

class NormFaultTest : public testing::TestWithParam<std::pair<const char*, Plant>> {};

TEST_P(NormFaultTest, IsNamedAlone) {
  const auto& [id, plant] = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool centre : {true, false}) {
      for (uint32_t seed = 1; seed <= 3; ++seed) {
        PlainNorm right;
        right.centre = right.with_bias = centre;
        right.rows = 2 * (2 + seed);
        right.C = 11 + 4 * seed;
        PlainNorm wrong = right;
        plant(&wrong);
        if (!centre && id == std::string("norm_bias_missing")) continue;
        const NormDump dump(seed, dtype, right);
        EXPECT_EQ(FindingOf(dump.Set(dtype, right, wrong.Of(dump.x, dump.weight, dump.bias))), id)
            << NameOf(dtype) << " seed " << seed << (centre ? " layernorm" : " rmsnorm");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, NormFaultTest,
    testing::Values(
        std::pair("correct", Plant([](PlainNorm*) {})),
        std::pair("norm_unbiased", Plant([](PlainNorm* n) { n->unbiased = true; })),
        std::pair("norm_eps_outside_sqrt", Plant([](PlainNorm* n) { n->eps_outside = true; })),
        std::pair("norm_eps_value", Plant([](PlainNorm* n) { n->eps = 1e-3; })),
        std::pair("norm_eps_value", Plant([](PlainNorm* n) { n->eps = 1e-6; })),
        std::pair("norm_gain_plus_one", Plant([](PlainNorm* n) { n->gain_offset = 1; })),
        std::pair("norm_gain_missing", Plant([](PlainNorm* n) { n->with_gain = false; })),
        std::pair("norm_bias_missing", Plant([](PlainNorm* n) { n->with_bias = false; })),
        std::pair("norm_cast_order", Plant([](PlainNorm* n) {
                    n->cast = [](double x) { return AsStored(DType::kBF16, {x})[0]; };
                  }))),
    [](const auto& test) { return std::string(test.param.first) + std::to_string(test.index); });

// Far from 0 the squares of the mean and of the numbers cancel in float32.
TEST(NormDiagnosisTest, CancellationIsNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    PlainNorm right;
    right.C = 11 + 4 * seed;
    PlainNorm wrong = right;
    wrong.float_cancels = true;
    const NormDump dump(seed, DType::kF32, right, /*mean=*/200);
    const TensorSet set = dump.Set(DType::kF32, right, wrong.Of(dump.x, dump.weight, dump.bias));
    EXPECT_EQ(FindingOf(set), "norm_cancellation") << seed;
  }
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
    for (int64_t r = 0; r < right.rows; ++r) {
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
