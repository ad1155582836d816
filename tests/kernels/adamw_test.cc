#include "kernels/simd/adamw.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/adamw.h"
#include "support/compare.h"

namespace heed {
namespace {

template <class T>
struct Adamw {
  std::vector<T> param, grad, m, v;
  AdamwArgs<T> settings;

  explicit Adamw(int64_t n) : param(FloatArray<T>(n, 1)), grad(FloatArray<T>(n, 2)), m(n), v(n) {
    settings.learning_rate = 0.01;
  }
  AdamwArgs<T> args() {
    AdamwArgs<T> a = settings;
    a.n = static_cast<int64_t>(param.size());
    a.param = param.data(), a.grad = grad.data(), a.m = m.data(), a.v = v.data();
    return a;
  }
};

// Three updates, one element with gradients as small as eps; computed with PyTorch in float64.
template <class T, class Update>
void ExpectPublished(const Update& update, double bound) {
  Adamw<T> adam(4);
  adam.param = {1.0, -2.0, 0.5, 3.0};
  adam.settings.weight_decay = 0.1;
  const std::vector<std::vector<T>> grads = {
      {T(0.1), T(-0.2), T(1e-8), 3}, {T(0.3), T(0.1), T(-2e-8), -1}, {0, T(-0.4), T(1e-8), 0.5}};
  for (const std::vector<T>& grad : grads) {
    adam.grad = grad;
    update(adam.args());
    ++adam.settings.step;
  }
  const std::vector<double> param = {0.970830116918787, -1.97485752879045, 0.495726487680313,
                                     2.97284640555};
  const std::vector<double> m = {0.0351, -0.0472, 1e-11, 0.203};
  const std::vector<double> v = {0.00472625, 0.01028, 2.85125e-17, 0.466125};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(adam.param[i], param[i], bound * std::abs(param[i]));
    EXPECT_NEAR(adam.v[i], v[i], 4 * bound * v[i]);
  }
  EXPECT_LE(RelativeError(adam.m, m), bound);
  // What is left of 9e-10, -2e-9 and 1e-9 once they cancel.
  EXPECT_NEAR(adam.m[2], m[2], bound * 4e-9);
}

TEST(Adamw, GivesPublishedNumbers) {
  ExpectPublished<double>([](const AdamwArgs<double>& a) { reference::Adamw(a); }, 1e-14);
  ExpectPublished<float>([](const AdamwArgs<>& a) { reference::Adamw(a); }, 1e-7);
  ForEachTarget([] { ExpectPublished<float>([](const AdamwArgs<>& a) { simd::Adamw(a); }, 1e-7); });
}

TEST(Adamw, FirstStepIsTheRateTimesTheSign) {
  ForEachTarget([] {
    Adamw<float> adam(100);
    adam.param.assign(100, 0);
    simd::Adamw(adam.args());
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_NEAR(adam.param[i], adam.grad[i] > 0 ? -0.01 : 0.01, 1e-8);
    }
  });
}

TEST(Adamw, EpsIsOutsideTheRootAndAfterTheCorrection) {
  ForEachTarget([] {
    Adamw<float> adam(1);
    adam.param = {0};
    adam.grad = {1e-8f};
    simd::Adamw(adam.args());
    // g / (|g| + eps) = 1/2. Inside the root, or before the correction of v, it would be 1e-4 or
    // 0.183.
    EXPECT_NEAR(adam.param[0], -0.005, 1e-8);
  });
}

TEST(Adamw, DecayDoesNotPassThroughTheMoments) {
  ForEachTarget([] {
    Adamw<float> adam(33);
    adam.param.assign(33, 2);
    adam.grad.assign(33, 0);
    adam.settings.weight_decay = 0.5;
    simd::Adamw(adam.args());
    EXPECT_EQ(adam.param, std::vector<float>(33, 1.99f));  // 2 (1 - 0.01 · 0.5)
    EXPECT_EQ(adam.m, std::vector<float>(33));
    EXPECT_EQ(adam.v, std::vector<float>(33));
  });
}

// A rate below a float's precision of 1: over many steps the decay must not drift.
TEST(Adamw, SmallDecayKeepsItsDigits) {
  ForEachTarget([] {
    Adamw<float> adam(16);
    adam.param.assign(16, 1);
    adam.grad.assign(16, 0);
    adam.settings.learning_rate = 1e-3;
    adam.settings.weight_decay = 0.1;
    for (int step = 0; step < 1000; ++step) simd::Adamw(adam.args());
    EXPECT_NEAR(1 - adam.param[0], 1 - std::pow(1 - 1e-4, 1000), 1e-5);
  });
}

TEST(Adamw, ClippingScalesTheGradient) {
  ForEachTarget([] {
    Adamw<float> clipped(50), scaled(50);
    clipped.settings.grad_scale = 0.25;
    for (float& g : scaled.grad) g *= 0.25f;
    simd::Adamw(clipped.args());
    simd::Adamw(scaled.args());
    EXPECT_EQ(clipped.param, scaled.param);
    EXPECT_EQ(clipped.m, scaled.m);
    EXPECT_EQ(clipped.v, scaled.v);
  });
}

RC_GTEST_PROP(Adamw, FastAgreesWithReferenceAtAnySize, ()) {
  const int64_t n = *rc::gen::inRange<int64_t>(1, 500);
  Adamw<double> want(n);
  want.settings.learning_rate = *rc::gen::element(1e-4, 1e-2, 0.5);
  want.settings.weight_decay = *rc::gen::element(0.0, 0.1);
  want.settings.beta1 = *rc::gen::element(0.0, 0.9, 0.99);
  want.settings.beta2 = *rc::gen::element(0.9, 0.95, 0.999);
  want.settings.grad_scale = *rc::gen::element(1.0, 0.3);
  want.settings.step = *rc::gen::element(1, 2, 10, 1000);
  if (want.settings.step > 1) {
    want.m = FloatArray<double>(n, 3, 0.1);
    want.v = RandomArray<double>(n, 4);
    for (double& v : want.v) v = static_cast<float>(v * v);
  }
  // Equal signs, so that no sum cancels and every digit that is lost is our own.
  for (int64_t i = 0; i < n; ++i) {
    want.param[i] = std::copysign(want.param[i], want.grad[i]);
    want.m[i] = std::copysign(want.m[i], want.grad[i]);
  }
  const Adamw<double> before = want;
  reference::Adamw(want.args());
  double error = 0, moved = 0;
  ForEachTarget([&] {
    Adamw<float> got(n);
    const AdamwArgs<double>& s = before.settings;
    got.settings.learning_rate = s.learning_rate, got.settings.weight_decay = s.weight_decay;
    got.settings.beta1 = s.beta1, got.settings.beta2 = s.beta2;
    got.settings.grad_scale = s.grad_scale, got.settings.step = s.step;
    got.param = Cast<float>(before.param), got.m = Cast<float>(before.m),
    got.v = Cast<float>(before.v);
    simd::Adamw(got.args());
    error = std::max({error, RelativeError(got.m, want.m), RelativeError(got.v, want.v)});
    // A parameter is rounded once to its own size, and its change to 1e-6 of itself.
    for (int64_t i = 0; i < n; ++i) {
      const double change = std::abs(want.param[i] - before.param[i]);
      const double slack = std::abs(want.param[i]) * 0x1p-24 + change * 1e-6 + 1e-30;
      moved = std::max(moved, std::abs(got.param[i] - want.param[i]) / slack);
    }
  });
  RC_ASSERT(error <= 3e-7);
  RC_ASSERT(moved <= 1.0);
}

TEST(Adamw, BitsDoNotDependOnThreads) {
  EXPECT_TRUE(SameForAnyTeam([] {
    Adamw<float> adam(50001);
    simd::Adamw(adam.args());
    return std::vector{adam.param, adam.m, adam.v};
  }));
}

}  // namespace
}  // namespace heed
