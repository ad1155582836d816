// Elementary functions against double, on every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include <gtest/gtest.h>
#include <hwy/foreach_target.h>

#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Function>
void Apply(const float* x, float* y, size_t n, const Function& function) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(function(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

void ExpArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR { return Exp(d, v); });
}
void Exp2Array(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR { return Exp2(d, v); });
}
void LogArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR { return Log(d, v); });
}
void SigmoidArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR { return Sigmoid(d, v); });
}
void GeluArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR { return Gelu(d, v); });
}
void GeluAgainArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR {
    auto out = v, derivative = v;
    GeluWithDerivative(d, v, out, derivative);
    return out;
  });
}
void GeluDerivativeArray(const float* x, float* y, size_t n) {
  Apply(x, y, n, [](auto d, auto v) HWY_ATTR {
    auto out = v, derivative = v;
    GeluWithDerivative(d, v, out, derivative);
    return derivative;
  });
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/targets.h"

namespace heed::simd {
namespace {

HWY_EXPORT(ExpArray);
HWY_EXPORT(Exp2Array);
HWY_EXPORT(LogArray);
HWY_EXPORT(SigmoidArray);
HWY_EXPORT(GeluArray);
HWY_EXPORT(GeluAgainArray);
HWY_EXPORT(GeluDerivativeArray);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kEps = 0x1p-24;  // half an ulp of 1

// Every 499th float in [-limit, limit], both signs, tiny ones included.
std::vector<float> Inputs(float limit) {
  std::vector<float> out;
  for (uint32_t bits = 0;; bits += 499) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    if (!(x <= limit)) break;
    out.push_back(x);
    out.push_back(-x);
  }
  out.resize(out.size() / 16 * 16);
  return out;
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
double GeluArgument(double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

// Of `run(x, y, n)`, whose results should be exact(x).
template <class RunOnArrays>
void ExpectToTheLastBits(const std::vector<float>& x, double (*exact)(double),
                         const RunOnArrays& run) {
  std::vector<float> y(x.size());
  ForEachTarget([&] {
    run(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = exact(static_cast<double>(x[i]));
      if (want < 0x1p-125) {
        ASSERT_LE(y[i], 0x1p-125f) << x[i];
        ASSERT_GE(y[i], 0) << x[i];
      } else if (want >= 0x1.ffffffp127) {
        ASSERT_EQ(y[i], kInfinity) << x[i];
      } else {
        ASSERT_LE(std::abs(y[i] - want), 2 * kEps * want) << x[i];
      }
    }
  });
}

TEST(Math, ExpToTheLastBits) {
  ExpectToTheLastBits(Inputs(110), std::exp, [](const float* x, float* y, size_t n) {
    HWY_DYNAMIC_DISPATCH(ExpArray)(x, y, n);
  });
}

TEST(Math, Exp2ToTheLastBits) {
  std::vector<float> x = Inputs(150);
  x[0] = 1e30f, x[1] = -1e30f, x[2] = kInfinity, x[3] = -kInfinity;
  ExpectToTheLastBits(x, std::exp2, [](const float* from, float* y, size_t n) {
    HWY_DYNAMIC_DISPATCH(Exp2Array)(from, y, n);
  });
}

TEST(Math, LogOfAnySize) {
  std::vector<float> x = Inputs(80);
  for (float& v : x) v = std::exp(v);
  x[0] = 1, x[1] = 2, x[2] = 0x1p-126f, x[3] = 0x1.fffffep127f;
  std::vector<float> y(x.size());
  ForEachTarget([&] {
    HWY_DYNAMIC_DISPATCH(LogArray)(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], 0);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::log(static_cast<double>(x[i]));
      ASSERT_LE(std::abs(y[i] - want), 3 * kEps * std::max(1.0, std::abs(want))) << x[i];
    }
  });
}

TEST(Math, SigmoidKeepsItsDigitsInBothTails) {
  const std::vector<float> x = Inputs(80);
  std::vector<float> y(x.size());
  ForEachTarget([&] {
    HWY_DYNAMIC_DISPATCH(SigmoidArray)(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = SigmoidOf(x[i]);
      ASSERT_LE(std::abs(y[i] - want), 6 * kEps * want) << x[i];
    }
  });
}

TEST(Math, GeluAndItsDerivative) {
  const std::vector<float> x = Inputs(9);
  std::vector<float> y(x.size()), again(x.size()), derivative(x.size());
  ForEachTarget([&] {
    HWY_DYNAMIC_DISPATCH(GeluArray)(x.data(), y.data(), x.size());
    HWY_DYNAMIC_DISPATCH(GeluAgainArray)(x.data(), again.data(), x.size());
    HWY_DYNAMIC_DISPATCH(GeluDerivativeArray)(x.data(), derivative.data(), x.size());
    ASSERT_EQ(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)), 0);
    for (size_t i = 0; i < x.size(); ++i) {
      // Rounding the argument 2u by some eps multiplies e^-2u by 1 + eps·2u.
      const double u2 = GeluArgument(x[i]), bound = (8 + 3 * std::abs(u2)) * kEps;
      const double s = SigmoidOf(u2), want = x[i] * s;
      ASSERT_LE(std::abs(y[i] - want), bound * std::abs(want) + 0x1p-125) << x[i];
      const double inner = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x[i] * x[i]);
      const double tail = x[i] * s * (1 - s) * inner;
      ASSERT_LE(std::abs(derivative[i] - (s + tail)), bound * (s + std::abs(tail)) + 0x1p-110)
          << x[i];
    }
  });
}

TEST(Math, FarOutAndNotANumber) {
  std::vector<float> x = {1e4f,   -1e4f, 1e20f, -1e20f, kInfinity, -kInfinity, 0,     NAN,
                          88.72f, 89,    1e38f, -1e38f, -88,       -87.5f,     -0.0f, 1e-40f};
  std::vector<float> y(x.size());
  ForEachTarget([&] {
    HWY_DYNAMIC_DISPATCH(ExpArray)(x.data(), y.data(), x.size());
    for (size_t i : {0, 2, 4, 9, 10}) EXPECT_EQ(y[i], kInfinity) << x[i];
    for (size_t i : {1, 3, 5, 11, 12, 13}) EXPECT_EQ(y[i], 0) << x[i];
    for (size_t i : {6, 14, 15}) EXPECT_EQ(y[i], 1) << x[i];
    EXPECT_TRUE(std::isnan(y[7]));

    HWY_DYNAMIC_DISPATCH(SigmoidArray)(x.data(), y.data(), x.size());
    for (size_t i : {0, 2, 4, 9, 10}) EXPECT_EQ(y[i], 1) << x[i];
    for (size_t i : {1, 3, 5, 11}) EXPECT_EQ(y[i], 0) << x[i];
    EXPECT_EQ(y[6], 0.5f);
    EXPECT_TRUE(std::isnan(y[7]));

    HWY_DYNAMIC_DISPATCH(GeluArray)(x.data(), y.data(), x.size());
    for (size_t i : {0, 2, 4, 9, 10}) EXPECT_EQ(y[i], x[i]);
    for (size_t i : {1, 3, 6, 11, 12, 13}) EXPECT_EQ(y[i], 0) << x[i];
    EXPECT_TRUE(std::isnan(y[7]));

    HWY_DYNAMIC_DISPATCH(GeluDerivativeArray)(x.data(), y.data(), x.size());
    for (size_t i : {0, 2, 9, 10}) EXPECT_EQ(y[i], 1) << x[i];
    for (size_t i : {1, 3, 11, 12, 13}) EXPECT_EQ(y[i], 0) << x[i];
    EXPECT_EQ(y[6], 0.5f);
    EXPECT_TRUE(std::isnan(y[7]));
  });
}

}  // namespace
}  // namespace heed::simd
#endif  // HWY_ONCE
