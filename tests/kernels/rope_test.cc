#include "kernels/reference/rope.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <complex>
#include <functional>
#include <vector>

#include "kernels/simd/rope.h"
#include "support/compare.h"
#include "support/targets.h"

namespace heed {
namespace {

// Angles position · theta^(-i / half) for i in [0, half) (Su et al. 2021, equation 15).
struct Table {
  std::vector<double> angle, cos, sin;

  Table(int64_t positions, int64_t half, double theta = 10000) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        angle.push_back(p * std::pow(theta, -static_cast<double>(i) / half));
        cos.push_back(std::cos(angle.back()));
        sin.push_back(std::sin(angle.back()));
      }
    }
  }
};

struct Shape {
  int64_t B, T, heads, D, half;
  bool interleaved = false, inverse = false;
  int64_t offset = 0;
};

template <class T>
RopeArgs<T> Args(const Shape& shape, std::vector<T>& x, const std::vector<T>& cos,
                 const std::vector<T>& sin) {
  RopeArgs<T> a;
  a.B = shape.B, a.T_ = shape.T, a.heads = shape.heads, a.D = shape.D, a.half = shape.half;
  a.interleaved = shape.interleaved, a.inverse = shape.inverse, a.offset = shape.offset;
  a.x = x.data();
  a.row = static_cast<int64_t>(x.size()) / (shape.B * shape.T);
  a.cos = cos.data(), a.sin = sin.data();
  return a;
}

std::vector<double> Turned(std::vector<double> x, const Table& table, const Shape& shape) {
  reference::Rope(Args(shape, x, table.cos, table.sin));
  return x;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(Rope, TurnsEachPairLikeAComplexNumber) {
  for (const bool interleaved : {false, true}) {
    const Shape shape{2, 3, 2, 7, 3, interleaved, false, 4};
    const Table table(7, shape.half);
    const auto x = RandomArray<double>(2 * 3 * 2 * 7, 1);
    const auto turned = Turned(x, table, shape);
    for (int64_t r = 0; r < 6; ++r) {
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t at = (r * 2 + h) * 7;
        for (int64_t i = 0; i < 3; ++i) {
          const int64_t i0 = at + (interleaved ? 2 * i : i);
          const int64_t i1 = at + (interleaved ? 2 * i + 1 : i + 3);
          const double angle = (4 + r % 3) * std::pow(10000.0, -i / 3.0);
          const auto want = std::complex(x[i0], x[i1]) * std::polar(1.0, angle);
          EXPECT_NEAR(turned[i0], want.real(), 1e-14);
          EXPECT_NEAR(turned[i1], want.imag(), 1e-14);
        }
        EXPECT_EQ(turned[at + 6], x[at + 6]) << "a channel outside the rotary width moved";
      }
    }
  }
}

TEST(LessonRow18, OneVectorByHand) {
  // Positions counted from 1: the first one turns [1, 0.8] by one radian.
  const auto turned = Turned({1.0, 0.8}, Table(2, 1), {1, 1, 1, 2, 1, false, false, 1});
  EXPECT_NEAR(turned[0], -0.1329, 5e-5);
  EXPECT_NEAR(turned[1], 1.2737, 5e-5);
}

TEST(LessonRow23, NinetyDegreesPerStep) {
  Table table(8, 1);
  for (int p = 0; p < 8; ++p) {
    table.cos[p] = std::cos(M_PI / 2 * p);
    table.sin[p] = std::sin(M_PI / 2 * p);
  }
  const auto at = [&](int64_t position) {
    return Turned({1, 0}, table, {1, 1, 1, 2, 1, false, false, position});
  };
  EXPECT_NEAR(Dot(at(0), at(0)), 1, 1e-15);
  EXPECT_NEAR(Dot(at(0), at(1)), 0, 1e-15);
  EXPECT_NEAR(Dot(at(0), at(2)), -1, 1e-15);
  EXPECT_NEAR(Dot(at(5), at(7)), -1, 1e-14);
}

TEST(LessonRow07, TurningBackAndForthIsOneTurn) {
  // R(1)ᵀ R(3) = R(2) with the angles 1 and 0.01 per position.
  const Table table(4, 2);
  ASSERT_NEAR(table.angle[2], 1, 1e-15);
  ASSERT_NEAR(table.angle[3], 0.01, 1e-15);
  const std::vector<double> x = {0.3, -1.2, 0.7, 2.0};
  const auto there = Turned(x, table, {1, 1, 1, 4, 2, false, false, 3});
  const auto back = Turned(there, table, {1, 1, 1, 4, 2, false, true, 1});
  EXPECT_LT(RelativeError(back, Turned(x, table, {1, 1, 1, 4, 2, false, false, 2})), 1e-15);
}

TEST(LessonRow07, KeepsNormsAndDependsOnDistanceAlone) {
  for (const bool interleaved : {false, true}) {
    const Table table(40, 8);
    const auto q = RandomArray<double>(16, 2), k = RandomArray<double>(16, 3);
    const auto at = [&](const std::vector<double>& x, int64_t position) {
      return Turned(x, table, {1, 1, 1, 16, 8, interleaved, false, position});
    };
    const double score = Dot(at(q, 9), at(k, 2));
    for (int64_t shift = 0; shift < 30; ++shift) {
      EXPECT_NEAR(Dot(at(q, shift), at(q, shift)), Dot(q, q), 1e-13);
      EXPECT_NEAR(Dot(at(q, 9 + shift), at(k, 2 + shift)), score, 1e-13);
    }
    EXPECT_GT(std::abs(Dot(at(q, 9), at(k, 3)) - score), 1e-3);
  }
}

Shape RandomShape() {
  Shape shape;
  shape.B = *rc::gen::inRange<int64_t>(1, 4);
  shape.T = *rc::gen::inRange<int64_t>(1, 9);
  shape.heads = *rc::gen::inRange<int64_t>(1, 5);
  shape.D = *rc::gen::inRange<int64_t>(2, 140);
  shape.half = *rc::gen::inRange<int64_t>(1, shape.D / 2 + 1);
  shape.interleaved = *rc::gen::arbitrary<bool>();
  shape.inverse = *rc::gen::arbitrary<bool>();
  shape.offset = *rc::gen::inRange<int64_t>(0, 20);
  return shape;
}

TEST(Rope, EveryInstructionSetAgreesWithTheReferenceAtRaggedSizes) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      const Shape shape = RandomShape();
      const int64_t row = shape.heads * shape.D + *rc::gen::inRange<int64_t>(0, 40);
      const Table table(40, shape.half);
      auto x = RandomArray(shape.B * shape.T * row, 4);
      auto want = Cast<double>(x);
      const auto cos = Cast<float>(table.cos), sin = Cast<float>(table.sin);
      const auto cos64 = Cast<double>(cos), sin64 = Cast<double>(sin);
      std::vector<int32_t> offsets;
      for (int64_t b = 0; b < shape.B; ++b) offsets.push_back(*rc::gen::inRange(0, 30));
      auto fast = Args(shape, x, cos, sin);
      auto slow = Args(shape, want, cos64, sin64);
      if (*rc::gen::arbitrary<bool>()) fast.offsets = slow.offsets = offsets.data();
      simd::Rope(fast);
      reference::Rope(slow);
      RC_ASSERT(RelativeError(x, want) < 2e-7);
    }));
  });
}

TEST(Rope, InverseUndoesTheTurn) {
  ForEachTarget([] {
    for (const bool interleaved : {false, true}) {
      Shape shape{2, 5, 3, 50, 21, interleaved};
      const Table table(5, shape.half);
      const auto cos = Cast<float>(table.cos), sin = Cast<float>(table.sin);
      const auto x = RandomArray(2 * 5 * 3 * 50, 5);
      auto turned = x;
      simd::Rope(Args(shape, turned, cos, sin));
      EXPECT_GT(RelativeError(turned, x), 0.1);
      shape.inverse = true;
      simd::Rope(Args(shape, turned, cos, sin));
      EXPECT_LT(RelativeError(turned, x), 3e-7);
    }
  });
}

}  // namespace
}  // namespace heed
