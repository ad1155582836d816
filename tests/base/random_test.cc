#include "base/random.h"

#include <gtest/gtest.h>

namespace heed {
namespace {

// Known answers published with the Random123 library (kat_vectors, philox4x32 10).
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(RandomBlock({0, 0, 0}, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(RandomBlock({~uint64_t{0}, ~uint32_t{0}, ~uint32_t{0}}, ~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = RandomNormal({7, 1, 2}, i);
    sum += x;
    squares += x * x;
  }
  // Five standard errors.
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
}

TEST(Random, BelowReachesEveryValueEvenly) {
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i) ++counts[RandomBelow({3, 0, 0}, i, 7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 5 * 100);
}

}  // namespace
}  // namespace heed
