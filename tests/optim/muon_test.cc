// Muon's update: numbers by hand, its orthogonality, a plain double-precision replay.
#include "optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "optim/adamw.h"
#include "support/mixes.h"

namespace heed {
namespace {

std::vector<float> Normal(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

// The direction that MuonStep takes from rest, undone of its factor.
std::vector<float> Direction(int64_t rows, int64_t cols, const std::vector<float>& grad) {
  std::vector<float> param(grad.size()), m(grad.size()), scratch;
  MuonArgs args{rows, cols, cols, param.data(), grad.data(), m.data()};
  args.learning_rate = 1;
  MuonStep(SimdKernels(), args, &scratch);
  for (float& x : param) x /= -0.2f * std::sqrt(static_cast<float>(std::max(rows, cols)));
  return param;
}

TEST(Muon, AMatrixOfOneNumberByHand) {
  // A number over its own size is its sign, which five steps of 3.4445 s - 4.775 s³ + 2.0315 s⁵
  // map.
  double s = 1;
  for (int step = 0; step < 5; ++step) s = s * (3.4445 + s * s * (-4.7750 + s * s * 2.0315));
  float param = 10, m = 2, grad = -3;
  std::vector<float> scratch;
  MuonArgs args{1, 1, 1, &param, &grad, &m};
  args.learning_rate = 0.5;
  args.momentum = 0.9;
  args.weight_decay = 0.1;
  args.grad_scale = 0.5;
  MuonStep(SimdKernels(), args, &scratch);
  EXPECT_NEAR(m, 0.9 * 2 - 1.5, 1e-6);  // 0.3, and -1.5 + 0.9 · 0.3 is below 0
  EXPECT_NEAR(param, 10 * 0.95 + 0.5 * 0.2 * s, 1e-5);
}

TEST(Muon, SingularValuesComeNearOne) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 24}, {7, 40}, {40, 7}, {1, 9}}) {
    const std::vector<float> o = Direction(rows, cols, Normal(rows * cols, 3));
    // A random vector of the smaller side is stretched by a mean of singular values.
    const bool wide = rows <= cols;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> x = Normal(wide ? rows : cols, seed);
      double before = 0, after = 0;
      for (const float value : x) before += double(value) * value;
      for (int64_t j = 0; j < std::max(rows, cols); ++j) {
        double sum = 0;
        for (int64_t i = 0; i < std::min(rows, cols); ++i) {
          sum += double(x[size_t(i)]) * o[size_t(wide ? i * cols + j : j * cols + i)];
        }
        after += sum * sum;
      }
      EXPECT_GT(std::sqrt(after / before), 0.6) << rows << " " << cols;
      EXPECT_LT(std::sqrt(after / before), 1.25) << rows << " " << cols;
    }
  }
}

TEST(Muon, ATransposedGradientMakesATransposedStep) {
  const std::vector<float> grad = Normal(6 * 11, 5);
  std::vector<float> turned(grad.size());
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 11; ++j) turned[j * 6 + i] = grad[i * 11 + j];
  }
  const std::vector<float> a = Direction(6, 11, grad), b = Direction(11, 6, turned);
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 11; ++j) EXPECT_NEAR(a[i * 11 + j], b[j * 6 + i], 1e-5);
  }
}

// The singular vectors stay: with G = U S Vᵀ known, the direction is U p(S) Vᵀ.
TEST(Muon, ADiagonalIsMappedByThePolynomial) {
  const double values[] = {3, -1, 0.5, 0.1};
  std::vector<float> grad(16);
  double norm = 0;
  for (size_t i = 0; i < 4; ++i) {
    grad[i * 5] = static_cast<float>(values[i]);
    norm += values[i] * values[i];
  }
  const std::vector<float> o = Direction(4, 4, grad);
  for (size_t i = 0; i < 4; ++i) {
    // From rest the momentum adds 0.9 g to g, which the norm takes away again.
    double s = values[i] / std::sqrt(norm);
    for (int step = 0; step < 5; ++step) s = s * (3.4445 + s * s * (-4.7750 + s * s * 2.0315));
    for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(o[i * 4 + j], i == j ? s : 0, 2e-5);
  }
}

TEST(Muon, MapsThatLieSideBySideAreMadeOrthogonalEachForItself) {
  const std::vector<float> grad = Normal(5 * 12, 8);
  std::vector<float> param(grad.size()), m(grad.size()), scratch;
  MuonArgs args{5, 4, 12, param.data() + 3, grad.data() + 3, m.data() + 3};
  args.learning_rate = 1;
  MuonStep(SimdKernels(), args, &scratch);
  std::vector<float> alone;
  for (size_t r = 0; r < 5; ++r) {
    for (size_t c = 3; c < 7; ++c) alone.push_back(grad[r * 12 + c]);
  }
  const std::vector<float> o = Direction(5, 4, alone);
  for (size_t r = 0; r < 5; ++r) {
    for (size_t c = 0; c < 12; ++c) {
      const float expected = c < 3 || c >= 7 ? 0 : -0.2f * std::sqrt(5.0f) * o[r * 4 + c - 3];
      EXPECT_FLOAT_EQ(param[r * 12 + c], expected) << r << " " << c;
    }
  }
}

// AdamW leaves a second moment behind, Muon none.
TEST(Muon, TakesTheMatricesOfLinearLayersAndNothingElse) {
  for (const Mix& mix : Mixes()) {
    const auto model = NoisyModel(mix.config, SimdKernels());
    ASSERT_TRUE(model->parameters().AllocateGradients());
    const auto optimizer = *Adamw::Create(&model->parameters());
    AdamwSettings settings;
    settings.muon = 2;
    for (Parameter& p : model->parameters().all()) p.grad[0] = 1;
    optimizer->Step(SimdKernels(), settings, 0.01, 0);
    for (const Parameter& p : model->parameters().all()) {
      const bool matrix = p.shape.size() == 2 && !p.name.starts_with("w") &&
                          p.name.find("embed") == std::string::npos && p.name != "lm_head.weight";
      EXPECT_EQ(optimizer->v(p)[0] == 0, matrix) << p.name;
      EXPECT_NE(optimizer->m(p)[0], 0) << p.name;
    }
  }
}

}  // namespace
}  // namespace heed
