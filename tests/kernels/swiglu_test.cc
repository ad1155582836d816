#include "kernels/simd/swiglu.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/swiglu.h"
#include "support/compare.h"
#include "support/dual.h"

namespace heed {
namespace {

template <class T>
struct Swiglu {
  std::vector<T> gate, up, dh, h;

  explicit Swiglu(int64_t n, double spread = 2)
      : gate(FloatArray<T>(n, 1, spread)), up(FloatArray<T>(n, 2)), dh(FloatArray<T>(n, 3)), h(n) {}
  SwigluArgs<T> args() {
    SwigluArgs<T> a;
    a.n = static_cast<int64_t>(gate.size());
    a.gate = gate.data(), a.up = up.data(), a.h = h.data(), a.dh = dh.data();
    return a;
  }
};

// Computed with PyTorch in float64.
TEST(Swiglu, GivesPublishedNumbers) {
  const std::vector<double> h = {-0.284555239065401, 0.188770334399073, 0.0, 0.365529289315002,
                                 -0.982013790037908};
  const std::vector<double> dgate = {-0.176208212030339, -0.130019406348674, -3.0, 1.39150576780723,
                                     -0.263166153722768};
  const std::vector<double> dup = {-0.1422776195327, -0.0943851671995364, 0.0, 2.19317573589001,
                                   3.92805516015163};
  const auto set = [](auto& s) {
    s.gate = {-3.0, -0.5, 0.0, 1.0, 4.0};
    s.up = {2.0, -1.0, 3.0, 0.5, -0.25};
    s.dh = {1.0, 0.5, -2.0, 3.0, 1.0};
  };
  Swiglu<double> exact(5);
  set(exact);
  reference::SwigluForward(exact.args());
  EXPECT_LE(RelativeError(exact.h, h), 1e-14);
  reference::SwigluBackward(exact.args());
  EXPECT_LE(RelativeError(exact.gate, dgate), 1e-14);
  EXPECT_LE(RelativeError(exact.up, dup), 1e-14);
  ForEachTarget([&] {
    Swiglu<float> fast(5);
    set(fast);
    simd::SwigluForward(fast.args());
    EXPECT_LE(RelativeError(fast.h, h), 3e-7);
    const std::vector<float> forward = fast.h;
    simd::SwigluBackward(fast.args());
    EXPECT_EQ(fast.h, forward);
    EXPECT_LE(RelativeError(fast.gate, dgate), 3e-7);
    EXPECT_LE(RelativeError(fast.up, dup), 3e-7);
  });
}

TEST(Swiglu, BackwardOfReferenceIsTheDerivative) {
  Swiglu<double> back(40);
  reference::SwigluBackward(back.args());
  for (const bool by_gate : {true, false}) {
    Swiglu<Dual> dual(40);
    for (Dual& x : by_gate ? dual.gate : dual.up) x.slope = 1;
    reference::SwigluForward(dual.args());
    std::vector<double> want, h;
    for (size_t i = 0; i < 40; ++i) {
      want.push_back(back.dh[i] * dual.h[i].slope);
      h.push_back(dual.h[i].value);
    }
    EXPECT_LE(RelativeError(by_gate ? back.gate : back.up, want), 1e-14);
    EXPECT_EQ(back.h, h);
  }
}

// The largest error of an element as a share of `size`, what it is made of: the left tail of silu
// keeps its digits.
double ElementError(const std::vector<float>& got, const std::vector<double>& want,
                    const std::vector<double>& size) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]) / std::max(std::abs(size[i]), 1e-30);
    worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
  }
  return worst;
}

RC_GTEST_PROP(Swiglu, FastAgreesWithReferenceAtAnySize, ()) {
  const int64_t n = *rc::gen::inRange<int64_t>(1, 3000);
  const double spread = *rc::gen::element(0.1, 1.0, 5.0, 20.0);
  const Swiglu<double> start(n, spread);
  Swiglu<double> want = start;
  std::vector<double> gate_size;  // silu' has a root near -1.28, where its two terms cancel
  for (int64_t i = 0; i < n; ++i) {
    const double sigmoid = 1 / (1 + std::exp(-start.gate[i]));
    gate_size.push_back(start.dh[i] * start.up[i] * sigmoid *
                        (1 + std::abs(start.gate[i]) * (1 - sigmoid)));
  }
  reference::SwigluBackward(want.args());
  double worst = 0;
  ForEachTarget([&] {
    Swiglu<float> got(n, spread);
    simd::SwigluForward(got.args());
    worst = std::max(worst, ElementError(got.h, want.h, want.h));
    simd::SwigluBackward(got.args());
    worst = std::max({worst, ElementError(got.h, want.h, want.h),
                      ElementError(got.up, want.up, want.up),
                      ElementError(got.gate, want.gate, gate_size)});
  });
  RC_ASSERT(worst <= 5e-7);
}

TEST(Swiglu, LargeNumbersSaturate) {
  ForEachTarget([] {
    Swiglu<float> s(4);
    s.gate = {1e4f, -1e4f, 200, -200};
    s.up = {2, 2, 2, 2};
    s.dh = {1, 1, 1, 1};
    simd::SwigluForward(s.args());
    EXPECT_EQ(s.h, (std::vector<float>{2e4f, 0, 400, 0}));
    simd::SwigluBackward(s.args());
    EXPECT_EQ(s.gate, (std::vector<float>{2, 0, 2, 0}));
    EXPECT_EQ(s.up, (std::vector<float>{1e4f, 0, 200, 0}));
  });
}

TEST(Swiglu, NanStaysNan) {
  ForEachTarget([] {
    Swiglu<float> s(37);
    s.gate[36] = NAN;
    simd::SwigluForward(s.args());
    EXPECT_TRUE(std::isnan(s.h[36]));
    EXPECT_FALSE(std::isnan(s.h[35]));
  });
}

TEST(Swiglu, BitsDoNotDependOnThreads) {
  EXPECT_TRUE(SameForAnyTeam([] {
    Swiglu<float> s(70001);
    simd::SwigluForward(s.args());
    const std::vector<float> h = s.h;
    simd::SwigluBackward(s.args());
    return std::vector{h, s.h, s.gate, s.up};
  }));
}

}  // namespace
}  // namespace heed
