#include "kernels/simd/cross_entropy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "kernels/differential.h"
#include "kernels/reference/cross_entropy.h"
#include "support/compare.h"
#include "support/dual.h"

namespace heed {
namespace {

template <class T>
struct Loss {
  int64_t rows, V;
  std::vector<T> logits;
  std::vector<int32_t> targets;
  std::vector<double> loss;
  bool backward = true;
  T scale = 1;

  Loss(int64_t rows_, int64_t V_, double spread = 3)
      : rows(rows_), V(V_), logits(FloatArray<T>(rows * V, 1, spread)), loss(rows, -1) {
    for (int64_t r = 0; r < rows; ++r) {
      // Some rows, the fourth for one, do not count.
      const int64_t target = static_cast<int64_t>(RandomBelow({3, 0, 0}, r, V));
      targets.push_back(static_cast<int32_t>(r % 5 == 3 ? -1 : target));
    }
  }
  CrossEntropyArgs<T> args() {
    CrossEntropyArgs<T> a;
    a.rows = rows, a.V = V, a.logits = logits.data(), a.targets = targets.data();
    a.loss = loss.data(), a.backward = backward, a.scale = scale;
    return a;
  }
};

// The previous-token model's example: v = [1, 0] gives the words cat, sat, ran these logits.
TEST(CrossEntropy, GivesTheExampleOfThreeWords) {
  const auto example = [](auto loss) {
    loss.logits = {0, 2, 1};
    loss.targets = {2};
    return loss;
  };
  const std::vector<double> gradient = {0.0900305732, 0.6652409558, -0.7552715290};
  Loss<double> exact = example(Loss<double>(1, 3));
  reference::CrossEntropy(exact.args());
  EXPECT_NEAR(exact.loss[0], 1.4076059644, 1e-10);
  EXPECT_LE(RelativeError(exact.logits, gradient), 1e-9);
  ForEachTarget([&] {
    Loss<float> fast = example(Loss<float>(1, 3));
    simd::CrossEntropy(fast.args());
    EXPECT_NEAR(fast.loss[0], 1.4076059644, 2e-7);
    EXPECT_LE(RelativeError(fast.logits, gradient), 2e-7);
  });
}

// Logits 2, 1, 0 over temperatures 1, 0.5 and 2: the softmax is the gradient with the one of the
// onehot added back.
TEST(CrossEntropy, GivesTheTemperaturesOfThreeLogits) {
  const std::vector<double> want = {0.6652409558, 0.2447284711, 0.0900305732,
                                    0.8668133322, 0.1173104292, 0.0158762400,
                                    0.5064804156, 0.3071958912, 0.1863237232};
  ForEachTarget([&] {
    Loss<float> fast(3, 3);
    fast.logits = {2, 1, 0, 4, 2, 0, 1, 0.5, 0};
    fast.targets = {0, 0, 0};
    simd::CrossEntropy(fast.args());
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_NEAR(fast.loss[row], -std::log(want[3 * row]), 2e-7);
      fast.logits[3 * row] += 1;
    }
    EXPECT_LE(RelativeError(fast.logits, want), 2e-7);
  });
}

TEST(CrossEntropy, EqualLogitsLoseTheLogOfTheirNumber) {
  ForEachTarget([] {
    for (const int64_t V : {1, 2, 65, 50257}) {
      Loss<float> even(1, V);
      even.logits.assign(V, 3.5f);
      even.targets = {0};
      simd::CrossEntropy(even.args());
      EXPECT_NEAR(even.loss[0], std::log(static_cast<double>(V)), 1e-12);
    }
  });
}

TEST(CrossEntropy, GradientOfReferenceIsTheDerivative) {
  Loss<double> back(3, 7);
  back.scale = 0.25;
  const std::vector<double> logits = back.logits;
  reference::CrossEntropy(back.args());
  for (int64_t r = 0; r < 3; ++r) {
    std::vector<double> want;
    for (int64_t v = 0; v < 7; ++v) {
      std::vector<Dual> row(logits.begin() + r * 7, logits.begin() + (r + 1) * 7);
      row[v].slope = 1;
      want.push_back(0.25 * reference::RowLoss(row.data(), 7, back.targets[r]).slope);
    }
    const std::vector<double> got(back.logits.begin() + r * 7, back.logits.begin() + (r + 1) * 7);
    EXPECT_LE(RelativeError(got, want), 1e-14);
  }
}

// The loss is some 10 nats at most; the error of a probability is a share of 1.
RC_GTEST_PROP(CrossEntropy, FastAgreesWithReferenceAtAnySize, ()) {
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 20);
  const int64_t V =
      *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 20), rc::gen::inRange<int64_t>(1, 700));
  Loss<double> want(rows, V);
  want.scale = 0.125;
  reference::CrossEntropy(want.args());
  double loss = 0, gradient = 0, apart = 0;
  ForEachTarget([&] {
    Loss<float> got(rows, V);
    got.scale = 0.125f;
    got.backward = false;
    const std::vector<float> logits = got.logits;
    simd::CrossEntropy(got.args());
    if (got.logits != logits) apart = 1;  // forward alone leaves them
    const std::vector<double> forward = got.loss;
    got.backward = true;
    simd::CrossEntropy(got.args());
    if (got.loss != forward) apart = 1;
    for (int64_t r = 0; r < rows; ++r) loss = std::max(loss, std::abs(got.loss[r] - want.loss[r]));
    for (size_t i = 0; i < want.logits.size(); ++i) {
      gradient = std::max(gradient, std::abs(got.logits[i] - want.logits[i]) / 0.125);
    }
  });
  RC_ASSERT(apart == 0);
  RC_ASSERT(loss <= 5e-7);
  RC_ASSERT(gradient <= 5e-7);
}

TEST(CrossEntropy, FastStaysExactOnLargeVocabularies) {
  Loss<double> want(3, 50257, 1);
  reference::CrossEntropy(want.args());
  ForEachTarget([&] {
    Loss<float> got(3, 50257, 1);
    simd::CrossEntropy(got.args());
    for (int64_t r = 0; r < 3; ++r) EXPECT_NEAR(got.loss[r], want.loss[r], 5e-7);
    EXPECT_LE(RelativeError(got.logits, want.logits), 1e-6);
  });
}

TEST(CrossEntropy, IgnoredRowsCountForNothing) {
  ForEachTarget([] {
    Loss<float> loss(5, 33);
    ASSERT_EQ(loss.targets[3], -1);
    loss.logits[3 * 33 + 2] = NAN;
    simd::CrossEntropy(loss.args());
    EXPECT_EQ(loss.loss[3], 0);
    for (int64_t v = 0; v < 33; ++v) EXPECT_EQ(loss.logits[3 * 33 + v], 0);
    EXPECT_GT(loss.loss[2], 0);
    EXPECT_LT(loss.loss[2], 1000);
  });
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  ForEachTarget([] {
    Loss<float> loss(3, 20);
    loss.targets = {4, 5, 4};
    loss.logits.assign(60, -1e4f);
    loss.logits[4] = loss.logits[24] = 1e4f;
    for (int64_t v = 0; v < 20; ++v) loss.logits[40 + v] = v == 4 ? -1e4f : 1e4f;
    simd::CrossEntropy(loss.args());
    EXPECT_EQ(loss.loss[0], 0);
    EXPECT_EQ(loss.loss[1], 2e4);
    EXPECT_NEAR(loss.loss[2], 2e4 + std::log(19.0), 1e-6);
    EXPECT_EQ(loss.logits[4], 0);
    EXPECT_EQ(loss.logits[24], 1);
    EXPECT_EQ(loss.logits[25], -1);
    EXPECT_EQ(loss.logits[44], -1);
    EXPECT_NEAR(loss.logits[45], 1.0 / 19, 1e-8);
  });
}

TEST(CrossEntropy, HiddenLogitsHaveNoProbability) {
  ForEachTarget([] {
    Loss<float> loss(1, 40);
    loss.logits.assign(40, -std::numeric_limits<float>::infinity());
    loss.logits[7] = loss.logits[30] = 1.5f;
    loss.targets = {7};
    simd::CrossEntropy(loss.args());
    EXPECT_NEAR(loss.loss[0], std::log(2.0), 1e-12);
    EXPECT_EQ(loss.logits[7], -0.5f);
    EXPECT_EQ(loss.logits[30], 0.5f);
    EXPECT_EQ(loss.logits[8], 0);
  });
}

TEST(CrossEntropy, NanReachesTheLossFromAnyPlace) {
  ForEachTarget([] {
    for (const int64_t V : {1, 5, 16, 65, 200}) {
      for (int64_t v = 0; v < V; ++v) {
        Loss<float> loss(2, V);
        loss.logits[v] = NAN;
        simd::CrossEntropy(loss.args());
        EXPECT_TRUE(std::isnan(loss.loss[0])) << v << " of " << V;
        EXPECT_FALSE(std::isnan(loss.loss[1])) << v << " of " << V;
      }
    }
  });
}

TEST(CrossEntropy, BitsDoNotDependOnThreads) {
  EXPECT_TRUE(SameForAnyTeam([] {
    Loss<float> loss(900, 65);
    simd::CrossEntropy(loss.args());
    return std::pair(loss.logits, loss.loss);
  }));
}

TEST(CrossEntropy, ARowsBitsDoNotDependOnTheOthers) {
  ForEachTarget([] {
    for (const int64_t V : {131, 10}) {
      Loss<float> all(301, V), one(1, V);
      const int64_t r = 271;
      one.logits.assign(all.logits.begin() + r * V, all.logits.begin() + (r + 1) * V);
      one.targets = {all.targets[r]};
      simd::CrossEntropy(all.args());
      simd::CrossEntropy(one.args());
      EXPECT_EQ(one.loss[0], all.loss[r]);
      EXPECT_TRUE(std::equal(one.logits.begin(), one.logits.end(), all.logits.begin() + r * V));
    }
  });
}

}  // namespace
}  // namespace heed
