#include "verify/diagnose/lattice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace heed {
namespace {

struct Sum {
  std::vector<double> columns, target;
  std::vector<bool> marks;
};

// Columns of very different lengths, and a multiple of the sum of some of them with noise.
Sum RandomSum(uint64_t seed, int64_t n, int64_t C, double factor, double noise) {
  const RandomKey key{seed, 1, 0};
  uint64_t draw = 0;
  Sum sum{std::vector<double>(n * C), std::vector<double>(C), std::vector<bool>(n)};
  for (int64_t i = 0; i < n; ++i) {
    const double length = std::exp(RandomNormal(key, draw++));
    sum.marks[i] = RandomUniform(key, draw++) < 0.7f;
    for (int64_t c = 0; c < C; ++c) {
      sum.columns[i * C + c] = length * RandomNormal(key, draw++);
      if (sum.marks[i]) sum.target[c] += factor * sum.columns[i * C + c];
    }
  }
  double square = 0;
  for (const double x : sum.target) square += x * x;
  for (double& x : sum.target)
    x += noise * std::sqrt(square / double(C)) * RandomNormal(key, draw++);
  return sum;
}

TEST(Lattice, FindsTheColumnsOfASum) {
  const std::pair<int64_t, int64_t> sizes[] = {{12, 3}, {20, 8}, {40, 16}, {30, 34}};
  for (const auto& [n, C] : sizes) {
    ASSERT_TRUE(IsDecidable(n, C, 1e-6));
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      for (const double factor : {1.0, 1 / 0.9, 1 / 0.7, 2.0}) {
        const Sum sum = RandomSum(seed, n, C, factor, 2e-7);
        const auto found = ColumnsAlong(sum.columns, sum.target, 1e-6);
        ASSERT_TRUE(found.has_value()) << n << " " << C << " " << seed;
        EXPECT_EQ(*found, sum.marks) << n << " " << C << " " << seed;
      }
    }
  }
}

TEST(Lattice, FindsNothingInWhatIsNoSum) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Sum sum = RandomSum(seed, 30, 12, 1, 0);
    sum.target = RandomSum(seed + 100, 30, 12, 1, 0).target;
    EXPECT_FALSE(ColumnsAlong(sum.columns, sum.target, 1e-6).has_value()) << seed;
    EXPECT_FALSE(ColumnsAlong(sum.columns, std::vector<double>(12), 1e-6).has_value());
  }
}

// 2^n choices against so many digits.
TEST(Lattice, FewDigitsDecideNothing) {
  EXPECT_TRUE(IsDecidable(64, 16, 1e-6));
  EXPECT_FALSE(IsDecidable(64, 4, 1e-6));
  EXPECT_FALSE(IsDecidable(64, 16, 3e-2));
  EXPECT_FALSE(IsDecidable(5, 1, 1e-6));
}

}  // namespace
}  // namespace heed
