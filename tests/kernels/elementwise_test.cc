#include "kernels/simd/elementwise.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/elementwise.h"
#include "support/compare.h"
#include "tensor/convert.h"

namespace heed {
namespace {

RC_GTEST_PROP(Add, GivesTheBitsOfReference, ()) {
  const int64_t n = *rc::gen::element(0, 1, 3, 16, 17, 100, 16384, 16385, 40000);
  std::vector<float> want = RandomArray(n, 1);
  const std::vector<float> x = RandomArray(n, 2);
  reference::Add(want.data(), x.data(), n);
  bool same = true;
  ForEachTarget([&] {
    std::vector<float> got = RandomArray(n, 1);
    simd::Add(got.data(), x.data(), n);
    same = same && got == want;
  });
  RC_ASSERT(same);
}

TEST(ColumnSum, WorksByHand) {
  const std::vector<float> x = {1, 2, 99, 3, 4, 99, 5, 6, 99};
  ForEachTarget([&] {
    std::vector<float> out = {10, 20};
    simd::ColumnSum(x.data(), 3, 2, 3, out.data(), true);
    EXPECT_EQ(out, (std::vector<float>{19, 32}));
    simd::ColumnSum(x.data(), 3, 2, 3, out.data(), false);
    EXPECT_EQ(out, (std::vector<float>{9, 12}));
    simd::ColumnSum(x.data(), 0, 2, 3, out.data(), false);
    EXPECT_EQ(out, (std::vector<float>{0, 0}));
  });
}

RC_GTEST_PROP(ColumnSum, FastEqualsReferenceAtAnySize, ()) {
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 400), C = *rc::gen::inRange<int64_t>(1, 200);
  const int64_t ld = C + *rc::gen::inRange<int64_t>(0, 20);
  const bool accumulate = *rc::gen::arbitrary<bool>();
  const std::vector<float> x = ExactArray<float>(rows * ld, 1);
  std::vector<float> want = ExactArray<float>(C, 2);
  reference::ColumnSum(x.data(), rows, C, ld, want.data(), accumulate);
  bool same = true;
  ForEachTarget([&] {
    std::vector<float> got = ExactArray<float>(C, 2);
    simd::ColumnSum(x.data(), rows, C, ld, got.data(), accumulate);
    same = same && got == want;
  });
  RC_ASSERT(same);
}

// In the same order as those of the same numbers in float, whatever they are.
RC_GTEST_PROP(ColumnSum, OfBf16HasTheBitsOfThatOfFloats, ()) {
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 400), C = *rc::gen::inRange<int64_t>(1, 200);
  const int64_t ld = C + *rc::gen::inRange<int64_t>(0, 20);
  const bool accumulate = *rc::gen::arbitrary<bool>();
  std::vector<float> x = RandomArray(rows * ld, 1);
  std::vector<uint16_t> stored;
  for (float& v : x) {
    stored.push_back(FloatToBf16(v));
    v = Bf16ToFloat(stored.back());
  }
  bool same = true;
  ForEachTarget([&] {
    std::vector<float> want = RandomArray(C, 2), got = want;
    simd::ColumnSum(x.data(), rows, C, ld, want.data(), accumulate);
    simd::ColumnSumBf16(stored.data(), rows, C, ld, got.data(), accumulate);
    same = same && got == want;
  });
  std::vector<float> want = RandomArray(C, 2), got = want;
  reference::ColumnSum(x.data(), rows, C, ld, want.data(), accumulate);
  reference::ColumnSumBf16(stored.data(), rows, C, ld, got.data(), accumulate);
  RC_ASSERT(same && got == want);
}

// Rounding grows with a run of rows, not with all of them.
TEST(ColumnSum, ManyRowsCostFewDigits) {
  const int64_t rows = 20000, C = 37;
  std::vector<float> x = RandomArray(rows * C, 1);
  for (float& v : x) v = std::abs(v);
  std::vector<float> want(C);
  reference::ColumnSum(x.data(), rows, C, C, want.data(), false);
  ForEachTarget([&] {
    std::vector<float> got(C);
    simd::ColumnSum(x.data(), rows, C, C, got.data(), false);
    EXPECT_LE(RelativeError(got, want), 2e-6);
  });
}

TEST(ColumnSum, BitsDoNotDependOnThreads) {
  const std::vector<float> x = RandomArray(5000 * 70, 1);
  EXPECT_TRUE(SameForAnyTeam([&] {
    std::vector<float> out(67);
    simd::ColumnSum(x.data(), 5000, 67, 70, out.data(), false);
    return out;
  }));
}

TEST(SumSquares, WorksByHandAndBeyondTheRangeOfFloat) {
  ForEachTarget([] {
    const std::vector<float> x = {3, -4, 12};
    EXPECT_EQ(simd::SumSquares(x.data(), 3), 169);
    EXPECT_EQ(simd::SumSquares(x.data(), 0), 0);
    const std::vector<float> large(40, 0x1p100f), small(40, 0x1p-100f);
    EXPECT_EQ(simd::SumSquares(large.data(), 40), 40 * 0x1p200);
    EXPECT_EQ(simd::SumSquares(small.data(), 40), 40 * 0x1p-200);
    std::vector<float> bad(40);
    bad[39] = NAN;
    EXPECT_TRUE(std::isnan(simd::SumSquares(bad.data(), 40)));
  });
}

TEST(SumSquares, FastAgreesWithReference) {
  for (const int64_t n : {1, 7, 31, 1000, 16384, 16385, 100003}) {
    const std::vector<float> x = RandomArray(n, 1);
    const double want = reference::SumSquares(x.data(), n);
    ForEachTarget([&] { EXPECT_NEAR(simd::SumSquares(x.data(), n), want, 1e-13 * want); });
  }
}

TEST(SumSquares, BitsDoNotDependOnThreads) {
  const std::vector<float> x = RandomArray(300007, 1);
  EXPECT_TRUE(SameForAnyTeam([&] { return simd::SumSquares(x.data(), 300007); }));
}

}  // namespace
}  // namespace heed
