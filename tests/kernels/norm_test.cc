#include "kernels/simd/norm.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/norm.h"
#include "support/compare.h"
#include "support/dual.h"

namespace heed {
namespace {

// A norm's arrays; x is offset + spread · normal numbers.
template <class T>
struct Norm {
  int64_t rows, C;
  bool rms, has_bias;
  std::vector<T> x, gain, bias, mean, rstd, y, dy, dx, dgain, dbias;
  double eps = 1e-5;
  bool accumulate = false;

  Norm(int64_t rows_, int64_t C_, bool rms_, bool has_bias_, double offset = 0, double spread = 1)
      : rows(rows_),
        C(C_),
        rms(rms_),
        has_bias(has_bias_),
        x(FloatArray<T>(rows * C, 1, spread)),
        gain(FloatArray<T>(C, 2)),
        bias(FloatArray<T>(C, 3)),
        mean(rms ? 0 : rows),
        rstd(rows),
        y(rows * C),
        dy(FloatArray<T>(rows * C, 4)),
        dx(FloatArray<T>(rows * C, 5)),
        dgain(FloatArray<T>(C, 6)),
        dbias(FloatArray<T>(C, 7)) {
    // Rounded to float, so that every number type holds the same values.
    for (T& v : x) v = static_cast<T>(static_cast<float>(static_cast<double>(v) + offset));
  }

  NormArgs<T> args() {
    NormArgs<T> a;
    a.rows = rows, a.C = C, a.eps = eps, a.rms = rms, a.accumulate = accumulate;
    a.x = x.data(), a.gain = gain.data(), a.bias = has_bias ? bias.data() : nullptr;
    a.mean = rms ? nullptr : mean.data(), a.rstd = rstd.data(), a.y = y.data();
    a.dy = dy.data(), a.dx = dx.data(), a.dgain = dgain.data();
    a.dbias = has_bias ? dbias.data() : nullptr;
    return a;
  }
};

// y = layer norm of two rows and its gradients; computed with PyTorch in float64.
template <class T>
Norm<T> PublishedRows(bool rms) {
  Norm<T> norm(2, 4, rms, !rms);
  norm.x = {0.5, -1.5, 2.0, 0.25, 3.0, 1.0, -2.0, 4.0};
  norm.gain = {1.5, -0.5, 2.0, 0.75};
  norm.bias = {T(0.1), T(-0.2), T(0.3), T(0.4)};
  norm.dy = {1.0, -2.0, 0.5, 0.25, -1.0, 0.75, 2.0, -0.5};
  norm.dx.assign(8, 0);
  return norm;
}

struct Published {
  std::vector<double> y, dx, dgain, dbias;
};

Published PublishedResults(bool rms) {
  if (rms) {
    return {{0.585538259274287, 0.585538259274287, 3.12287071612953, 0.146384564818572,
             1.64316657707148, -0.182574064119053, -1.46059251295243, 1.09544438471432},
            {1.09393464665178, 1.01214329472275, 0.472150191445223, 0.107813628870177,
             -0.0228224578811944, 0.0380360300693652, 1.11065935663512, 0.56293576454533},
            {-0.705085545198128, 2.61601413327573, -0.679874833920043, -0.681501401536689},
            {}};
  }
  return {{0.326418838731491, 0.529571813690361, 3.0170260647779, 0.362263526878085,
           1.08197957084377, -0.0908911587951365, -2.75504755373618, 1.21831630903648},
          {0.461881715871236, 0.0970637195384705, 0.0310810481783925, -0.590026483588099,
           -0.315637300068773, -0.531255807005447, 0.318236475541827, 0.528656631532393},
          {-0.503707154741521, 2.75462399295415, -2.37579103754171, -0.55812303039829},
          {0.0, -1.25, 2.5, -0.25}};
}

template <class T>
void ExpectPublished(bool rms, Norm<T>& norm, double bound) {
  const Published want = PublishedResults(rms);
  EXPECT_LE(RelativeError(norm.y, want.y), bound);
  EXPECT_LE(RelativeError(norm.dx, want.dx), bound);
  EXPECT_LE(RelativeError(norm.dgain, want.dgain), bound);
  if (!rms) {
    EXPECT_LE(RelativeError(norm.dbias, want.dbias), bound);
  }
}

TEST(Norm, GivesPublishedNumbers) {
  for (bool rms : {false, true}) {
    Norm<double> exact = PublishedRows<double>(rms);
    reference::NormForward(exact.args());
    reference::NormBackward(exact.args());
    ExpectPublished(rms, exact, 1e-13);
    ForEachTarget([&] {
      Norm<float> fast = PublishedRows<float>(rms);
      simd::NormForward(fast.args());
      simd::NormBackward(fast.args());
      ExpectPublished(rms, fast, 3e-7);
    });
  }
}

TEST(Norm, WorksByHand) {
  ForEachTarget([] {
    Norm<float> row(1, 2, false, false);
    // Differences far below sqrt(eps): y = 0.001 / sqrt(1e-6 + 1e-5), not 1.
    row.x = {0.001f, -0.001f};
    row.gain = {1, 1};
    simd::NormForward(row.args());
    EXPECT_NEAR(row.y[0], 0.30151134f, 1e-7);
    EXPECT_NEAR(row.y[1], -0.30151134f, 1e-7);
    Norm<float> rms(1, 2, true, false);
    rms.eps = 0;
    rms.x = {3, 4};
    rms.gain = {1, 2};
    simd::NormForward(rms.args());
    EXPECT_NEAR(rms.y[0], 0.8485281374f, 1e-7);       // 3 / sqrt(12.5)
    EXPECT_NEAR(rms.y[1], 2 * 1.131370850f, 2.4e-7);  // 2 · 4 / sqrt(12.5)
    Norm<float> constant(1, 5, false, true);
    constant.x.assign(5, 7.25f);
    simd::NormForward(constant.args());
    EXPECT_EQ(constant.y, constant.bias);
  });
}

// Every partial derivative of sum(dy · y), by dual numbers.
TEST(Norm, BackwardOfReferenceIsTheDerivative) {
  for (const bool rms : {false, true}) {
    for (const bool has_bias : {false, true}) {
      Norm<double> norm(3, 5, rms, has_bias);
      const std::vector<double> dx = norm.dx;
      reference::NormForward(norm.args());
      reference::NormBackward(norm.args());
      for (size_t i = 0; i < norm.dx.size(); ++i) norm.dx[i] -= dx[i];  // it is added to
      const auto derivative = [&](auto member) {
        const size_t count = (Norm<Dual>(3, 5, rms, has_bias).*member).size();
        std::vector<double> slopes;
        for (size_t i = 0; i < count; ++i) {
          Norm<Dual> dual(3, 5, rms, has_bias);
          (dual.*member)[i].slope = 1;
          reference::NormForward(dual.args());
          double slope = 0;
          for (size_t k = 0; k < dual.y.size(); ++k) slope += norm.dy[k] * dual.y[k].slope;
          slopes.push_back(slope);
        }
        return slopes;
      };
      EXPECT_LE(RelativeError(norm.dx, derivative(&Norm<Dual>::x)), 1e-12);
      EXPECT_LE(RelativeError(norm.dgain, derivative(&Norm<Dual>::gain)), 1e-12);
      if (has_bias) {
        EXPECT_LE(RelativeError(norm.dbias, derivative(&Norm<Dual>::bias)), 1e-12);
      }
    }
  }
}

// The largest error of each result as a share of the numbers that it is made of, which may cancel.
struct Errors {
  double forward = 0, dx = 0, dgain = 0, dbias = 0;

  void Take(const Errors& other) {
    forward = std::max(forward, other.forward), dx = std::max(dx, other.dx);
    dgain = std::max(dgain, other.dgain), dbias = std::max(dbias, other.dbias);
  }
};

// `start` holds the inputs of both, `want` what the reference in double made of them.
Errors ErrorsOf(const Norm<float>& got, const Norm<double>& want, const Norm<double>& start) {
  std::vector<double> y_size(want.y.size()), dx_size(want.y.size());
  std::vector<double> gain_size(want.C), bias_size(want.C);
  for (int64_t i = 0; i < want.rows * want.C; ++i) {
    const int64_t r = i / want.C, c = i % want.C;
    const double centred = want.x[i] - (want.rms ? 0 : want.mean[r]);
    y_size[i] = std::abs(centred * want.rstd[r] * want.gain[c]);
    if (want.has_bias) y_size[i] += std::abs(want.bias[c]);
    dx_size[i] = std::abs(want.dy[i] * want.gain[c] * want.rstd[r]) + std::abs(start.dx[i]);
    gain_size[c] += std::abs(want.dy[i] * centred * want.rstd[r]);
    bias_size[c] += std::abs(want.dy[i]);
  }
  const auto share = [](const auto& a, const auto& b, const std::vector<double>& size) {
    double error = 0, largest = 1e-30;
    for (size_t i = 0; i < b.size(); ++i) {
      const double e = std::abs(a[i] - b[i]);
      error = std::isnan(e) ? HUGE_VAL : std::max(error, e);
      largest = std::max(largest, size[i]);
    }
    return error / largest;
  };
  Errors errors;
  errors.forward = std::max(share(got.y, want.y, y_size), RelativeError(got.rstd, want.rstd));
  errors.dx = share(got.dx, want.dx, dx_size);
  errors.dgain = share(got.dgain, want.dgain, gain_size);
  if (want.has_bias) errors.dbias = share(got.dbias, want.dbias, bias_size);
  return errors;
}

RC_GTEST_PROP(Norm, FastAgreesWithReferenceAtAnySize, ()) {
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t C =
      *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 20), rc::gen::inRange<int64_t>(1, 300));
  const bool rms = *rc::gen::arbitrary<bool>(), has_bias = *rc::gen::arbitrary<bool>();
  Norm<double> want(rows, C, rms, has_bias);
  want.accumulate = *rc::gen::arbitrary<bool>();
  const Norm<double> start = want;
  reference::NormForward(want.args());
  reference::NormBackward(want.args());
  Errors worst;
  ForEachTarget([&] {
    Norm<float> got(rows, C, rms, has_bias);
    got.accumulate = want.accumulate;
    simd::NormForward(got.args());
    simd::NormBackward(got.args());
    worst.Take(ErrorsOf(got, want, start));
  });
  RC_ASSERT(worst.forward <= 5e-7);
  RC_ASSERT(worst.dx <= 1e-6);
  RC_ASSERT(worst.dgain <= 1e-6);
  RC_ASSERT(worst.dbias <= 1e-6);
}

// Wide rows, many rows, rows with a small variance and rows far from 0, where the mean's own
// rounding (6e-5 at 2000) would show in y.
TEST(Norm, FastStaysExactOnHardRows) {
  struct Shape {
    int64_t rows, C;
    double offset, spread;
  };
  for (const Shape& s : {Shape{7, 4096, 0, 1}, Shape{2000, 65, 0, 1}, Shape{9, 384, 2000, 1},
                         Shape{203, 6, 2000, 1}, Shape{77, 16, -300, 0.1}, Shape{4000, 2, 0, 1},
                         Shape{9, 384, -300, 0.1}, Shape{5, 768, 0, 1e-4}, Shape{5, 768, 0, 1e4}}) {
    for (const bool rms : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.rows << "x" << s.C << " at " << s.offset << " ± "
                                      << s.spread << (rms ? " rms" : ""));
      const Norm<double> start(s.rows, s.C, rms, !rms, s.offset, s.spread);
      Norm<double> want = start;
      reference::NormForward(want.args());
      reference::NormBackward(want.args());
      ForEachTarget([&] {
        Norm<float> got(s.rows, s.C, rms, !rms, s.offset, s.spread);
        simd::NormForward(got.args());
        const std::vector<float> forward = got.y;
        got.y.assign(got.y.size(), 0);
        simd::NormApply(got.args());
        EXPECT_EQ(got.y, forward);
        simd::NormBackward(got.args());
        const Errors errors = ErrorsOf(got, want, start);
        EXPECT_LE(errors.forward, 5e-7);
        EXPECT_LE(errors.dx, 1e-6);
        EXPECT_LE(errors.dgain, 1e-6);
        EXPECT_LE(errors.dbias, 1e-6);
      });
    }
  }
}

TEST(Norm, FloatReferenceAgreesToo) {
  for (const bool rms : {false, true}) {
    Norm<double> want(6, 77, rms, true);
    Norm<float> got(6, 77, rms, true);
    reference::NormForward(want.args());
    reference::NormBackward(want.args());
    reference::NormForward(got.args());
    reference::NormBackward(got.args());
    EXPECT_LE(RelativeError(got.y, want.y), 1e-6);
    EXPECT_LE(RelativeError(got.dx, want.dx), 1e-6);
    EXPECT_LE(RelativeError(got.dgain, want.dgain), 1e-6);
    EXPECT_LE(RelativeError(got.dbias, want.dbias), 1e-6);
  }
}

TEST(Norm, BitsDoNotDependOnThreads) {
  for (const bool rms : {false, true}) {
    EXPECT_TRUE(SameForAnyTeam([&] {
      Norm<float> norm(1037, 96, rms, !rms);
      simd::NormForward(norm.args());
      simd::NormBackward(norm.args());
      return std::vector{norm.y, norm.rstd, norm.dx, norm.dgain, norm.dbias};
    }));
  }
}

TEST(Norm, ARowsBitsDoNotDependOnTheOthers) {
  ForEachTarget([] {
    for (const int64_t C : {129, 16, 6, 2}) {
      Norm<float> all(203, C, false, true);
      std::vector<float> dx = all.dx;
      simd::NormForward(all.args());
      simd::NormBackward(all.args());
      for (int64_t r : {0, 1, 100, 202}) {
        Norm<float> one(1, C, false, true);
        const auto row = [&](const std::vector<float>& a) {
          return std::vector<float>(a.begin() + r * C, a.begin() + (r + 1) * C);
        };
        one.x = row(all.x), one.dy = row(all.dy), one.dx = row(dx);
        simd::NormForward(one.args());
        simd::NormBackward(one.args());
        EXPECT_EQ(one.y, row(all.y));
        EXPECT_EQ(one.dx, row(all.dx));
      }
    }
  });
}

TEST(Norm, NoRowsGiveZeroSums) {
  ForEachTarget([] {
    Norm<float> none(0, 19, false, true);
    simd::NormForward(none.args());
    simd::NormBackward(none.args());
    EXPECT_EQ(none.dgain, std::vector<float>(19));
    EXPECT_EQ(none.dbias, std::vector<float>(19));
  });
}

}  // namespace
}  // namespace heed
