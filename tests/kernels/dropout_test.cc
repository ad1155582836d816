#include "kernels/simd/dropout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/dropout.h"
#include "support/compare.h"

namespace heed {
namespace {

RC_GTEST_PROP(Dropout, FastGivesTheBitsOfReference, ()) {
  const int64_t n = *rc::gen::inRange<int64_t>(0, 5000);
  const uint64_t first = *rc::gen::arbitrary<uint64_t>() >> *rc::gen::inRange(1, 64);
  const DropoutArgs args{*rc::gen::element(0.0, 0.1, 0.2, 0.5, 0.9, 1.0 / 3, 1.0),
                         {*rc::gen::arbitrary<uint64_t>(), *rc::gen::arbitrary<uint32_t>(),
                          *rc::gen::arbitrary<uint32_t>()}};
  std::vector<float> want = RandomArray(n, 1);
  reference::Dropout(want.data(), n, first, args);
  bool same = true;
  ForEachTarget([&] {
    std::vector<float> got = RandomArray(n, 1);
    simd::Dropout(got.data(), n, first, args);
    same = same && got == want;
  });
  RC_ASSERT(same);
}

TEST(Dropout, KeepsExactlyTheNumbersThatReachP) {
  const RandomKey key{11, 22, 33};
  for (const int64_t i : {0, 5, 1000, 4095}) {
    const double uniform = RandomUniform(key, i);
    ForEachTarget([&] {
      std::vector<float> x(4096, 1.0f);
      simd::Dropout(x.data(), 4096, 0, {uniform, key});
      EXPECT_NE(x[i], 0);  // u >= p at equality
      x.assign(4096, 1.0f);
      simd::Dropout(x.data(), 4096, 0, {std::nextafter(uniform, 1.0), key});
      EXPECT_EQ(x[i], 0);
    });
  }
}

TEST(Dropout, KeptNumbersAreScaledAndTheMeanStays) {
  constexpr int64_t n = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    ForEachTarget([&] {
      std::vector<float> x(n, 1.0f);
      simd::Dropout(x.data(), n, 0, {p, {1, 2, 3}});
      const float factor = static_cast<float>(1 / (1 - p));
      double sum = 0;
      for (const float v : x) {
        ASSERT_TRUE(v == 0 || v == factor);
        sum += v;
      }
      // A number is factor with probability 1 - p, else 0: variance p / (1 - p).
      EXPECT_NEAR(sum / n, 1.0, 5 * std::sqrt(p / (1 - p) / n));
    });
  }
}

TEST(Dropout, ZeroKeepsAllAndOneDropsAll) {
  ForEachTarget([] {
    std::vector<float> x = RandomArray(101, 1);
    simd::Dropout(x.data(), 101, 3, {0.0, {1, 2, 3}});
    EXPECT_EQ(x, RandomArray(101, 1));
    x[50] = NAN;
    simd::Dropout(x.data(), 101, 3, {1.0, {1, 2, 3}});
    EXPECT_EQ(x, std::vector<float>(101));
  });
}

TEST(Dropout, BitsDoNotDependOnThreadsOrPieces) {
  const DropoutArgs args{0.3, {5, 6, 7}};
  EXPECT_TRUE(SameForAnyTeam([&] {
    std::vector<float> x = RandomArray(50003, 1);
    simd::Dropout(x.data(), 50003, 17, args);
    return x;
  }));
  std::vector<float> whole = RandomArray(5000, 1), parts = whole;
  simd::Dropout(whole.data(), 5000, 2, args);
  simd::Dropout(parts.data(), 1234, 2, args);
  simd::Dropout(parts.data() + 1234, 3766, 1236, args);
  EXPECT_EQ(whole, parts);
}

}  // namespace
}  // namespace heed
