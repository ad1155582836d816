#include "data/batch.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "text/char_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

// Batches over a text whose token at position i is i, so that a token tells its place.
TextBatches Ramp(int64_t train, int64_t val, int64_t block_size) {
  std::string text;
  for (int64_t i = 0; i < train + val; ++i) AppendUtf8(static_cast<char32_t>(0x3000 + i), &text);
  auto store =
      TokenStore::Make(Corpus::FromString("ramp", text), **CharTokenizer::FromText(text), {});
  return TextBatches(std::move(*store), {train, val}, block_size, train + val);
}

TEST(TextBatches, TargetsAreTheNextTokensInsideTheTrainSplit) {
  const int64_t T = 5, n = 17;
  const TextBatches data = Ramp(n, 11, T);
  std::set<int32_t> begins;
  Batch batch;
  for (int64_t step = 0; step < 50; ++step) {
    data.TrainBatch(1, step, 7, &batch);
    ASSERT_EQ(batch.B, 7);
    ASSERT_EQ(batch.T, T);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      ASSERT_EQ(batch.targets[i], batch.tokens[i] + 1);
      ASSERT_EQ(batch.tokens[i], batch.tokens[i / T * T] + static_cast<int32_t>(i % T));
      ASSERT_LT(batch.targets[i], n);
    }
    for (int64_t b = 0; b < 7; ++b) begins.insert(batch.tokens[b * T]);
  }
  // Every place of [0, n - T), both ends included: 350 draws of 12.
  EXPECT_EQ(static_cast<int64_t>(begins.size()), n - T);
  EXPECT_EQ(*begins.begin(), 0);
  EXPECT_EQ(*begins.rbegin(), n - T - 1);
}

TEST(TextBatches, PlacesAreAFunctionOfSeedStepAndRow) {
  const TextBatches data = Ramp(1000, 100, 8);
  Batch whole, part, again, other;
  data.TrainBatch(42, 7, 6, &whole);
  SetNumThreads(3);
  data.TrainBatch(42, 8, 6, &other);
  data.TrainBatch(42, 7, 6, &again);
  SetNumThreads(HardwareThreads());
  EXPECT_EQ(again.tokens, whole.tokens);
  EXPECT_NE(other.tokens, whole.tokens);
  data.TrainBatch(43, 7, 6, &other);
  EXPECT_NE(other.tokens, whole.tokens);
  // Two accumulated batches of 3 are one of 6.
  data.TrainBatch(42, 7, 3, &part, 3);
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), whole.tokens.begin() + 3 * 8));
}

TEST(TextBatches, PlacesAreUniform) {
  const TextBatches data = Ramp(24, 10, 4);  // 20 places
  std::vector<int> counts(20);
  Batch batch;
  for (int64_t step = 0; step < 1000; ++step) {
    data.TrainBatch(3, step, 10, &batch);
    for (int64_t b = 0; b < 10; ++b) ++counts[batch.tokens[b * 4]];
  }
  double chi2 = 0;  // 19 degrees of freedom; above 43.8 with probability 0.001
  for (int count : counts) chi2 += (count - 500.0) * (count - 500.0) / 500.0;
  EXPECT_LT(chi2, 43.8);
}

TEST(TextBatches, ShortestSplits) {
  const TextBatches data = Ramp(5, 5, 4);
  Batch batch;
  data.TrainBatch(0, 0, 3, &batch);
  for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(batch.tokens[b * 4], 0);
  EXPECT_EQ(data.ValWindows(), 1);
  data.ValBatch(0, 1, 1, &batch);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{6, 7, 8, 9}));
}

TEST(TextBatches, EnoughWindowsCoverTheSplitOnce) {
  // 11 validation tokens have 10 targets: two windows of 4, and one more for the last 2.
  const TextBatches data = Ramp(20, 11, 4);
  ASSERT_EQ(data.ValWindows(), 3);
  Batch batch;
  data.ValBatch(0, 3, 1000, &batch);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{20, 21, 22, 23, 24, 25, 26, 27, 26, 27, 28, 29}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{21, 22, 23, 24, 25, 26, 27, 28, -1, -1, 29, 30}));
  // 9 tokens: exactly two.
  const TextBatches exact = Ramp(20, 9, 4);
  ASSERT_EQ(exact.ValWindows(), 2);
  exact.ValBatch(0, 2, 2, &batch);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{20, 21, 22, 23, 24, 25, 26, 27}));
}

TEST(TextBatches, FewerWindowsSpreadEvenly) {
  // 101 tokens, windows of 10: the last may begin at 90. Four: steps of 30.
  const TextBatches data = Ramp(20, 101, 10);
  Batch batch;
  data.ValBatch(0, 4, 4, &batch);
  EXPECT_EQ(batch.tokens[0], 20);
  EXPECT_EQ(batch.tokens[10], 50);
  EXPECT_EQ(batch.tokens[20], 80);
  EXPECT_EQ(batch.tokens[30], 110);
  Batch middle;
  data.ValBatch(2, 1, 4, &middle);
  EXPECT_EQ(middle.tokens[0], 80);
}

RC_GTEST_PROP(TextBatches, ValidationWindowsNeverOverlapOrLeave, ()) {
  const int64_t T = *rc::gen::inRange<int64_t>(1, 9);
  const int64_t val = *rc::gen::inRange<int64_t>(T + 1, 120);
  const int64_t wanted = *rc::gen::inRange<int64_t>(1, 130);
  const TextBatches data = Ramp(T + 1, val, T);
  const int64_t windows = std::min(wanted, data.ValWindows());
  Batch batch;
  data.ValBatch(0, windows, wanted, &batch);
  std::vector<int32_t> counted;
  for (const int32_t target : batch.targets) {
    if (target >= 0) counted.push_back(target);
  }
  RC_ASSERT(std::is_sorted(counted.begin(), counted.end()));
  RC_ASSERT(std::adjacent_find(counted.begin(), counted.end()) == counted.end());
  RC_ASSERT(*std::min_element(batch.tokens.begin(), batch.tokens.end()) == T + 1);
  RC_ASSERT(counted.back() < T + 1 + val);
  if (windows == data.ValWindows()) {
    RC_ASSERT(static_cast<int64_t>(counted.size()) == val - 1);
  } else {
    RC_ASSERT(static_cast<int64_t>(counted.size()) == windows * T);
  }
}

}  // namespace
}  // namespace heed
