#include "data/adder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace heed {
namespace {

using Digits = std::vector<int32_t>;

// tokens and the last target spell the sequence.
Digits Sequence(const Batch& batch, int64_t row) {
  Digits digits(batch.tokens.begin() + row * batch.T, batch.tokens.begin() + (row + 1) * batch.T);
  digits.push_back(batch.targets[(row + 1) * batch.T - 1]);
  return digits;
}

TEST(Adder, LaysOutAsMinGptDoes) {
  const auto adder = *AdderBatches::Make(2, 1);
  EXPECT_EQ(adder->block(), 6);
  EXPECT_EQ(adder->vocab_size(), 10);
  // 85 + 50 = 135: "8550" and "531".
  bool seen = false;
  Batch batch;
  for (int64_t step = 0; step < 2000 && !seen; ++step) {
    adder->TrainBatch(1, step, 100, &batch);
    for (int64_t b = 0; b < 100; ++b) {
      const Digits digits = Sequence(batch, b);
      if (!std::equal(digits.begin(), digits.begin() + 4, Digits{8, 5, 5, 0}.begin())) continue;
      seen = true;
      EXPECT_EQ(digits, (Digits{8, 5, 5, 0, 5, 3, 1}));
      const Digits targets(batch.targets.begin() + b * 6, batch.targets.begin() + (b + 1) * 6);
      EXPECT_EQ(targets, (Digits{-1, -1, -1, 5, 3, 1}));
    }
  }
  for (const auto& problem : adder->HeldOut()) {
    if (problem.prompt == Digits{8, 5, 5, 0}) {
      seen = true;
      EXPECT_EQ(problem.answer, (Digits{5, 3, 1}));
    }
  }
  EXPECT_TRUE(seen);
}

TEST(Adder, HoldsOutAFifthOrFiveHundredAndNeverTrainsOnIt) {
  const struct {
    int64_t ndigit;
    size_t held_out;
  } cases[] = {{1, 20}, {2, 500}, {3, 500}};
  for (const auto& c : cases) {
    const auto adder = *AdderBatches::Make(c.ndigit, 9);
    std::set<Digits> held_out;
    for (const auto& problem : adder->HeldOut()) {
      held_out.insert(problem.prompt);
      int64_t a = 0, b = 0, sum = 0;
      for (int64_t i = 0; i < c.ndigit; ++i) {
        a = a * 10 + problem.prompt[i];
        b = b * 10 + problem.prompt[c.ndigit + i];
      }
      for (int64_t i = c.ndigit; i >= 0; --i) sum = sum * 10 + problem.answer[i];
      EXPECT_EQ(sum, a + b);
      EXPECT_EQ(static_cast<int64_t>(problem.answer.size()), c.ndigit + 1);
    }
    EXPECT_EQ(held_out.size(), c.held_out);
    EXPECT_EQ(adder->ValWindows(), static_cast<int64_t>(c.held_out));

    std::set<Digits> trained;
    Batch batch;
    for (int64_t step = 0; step < 200; ++step) {
      adder->TrainBatch(5, step, 64, &batch);
      for (int64_t b = 0; b < batch.B; ++b) {
        const auto row = batch.tokens.begin() + b * batch.T;
        trained.insert(Digits(row, row + 2 * c.ndigit));
      }
    }
    for (const Digits& prompt : trained) EXPECT_EQ(held_out.count(prompt), 0u);
    if (c.ndigit == 1) {
      EXPECT_EQ(trained.size(), 80u);  // all the others
    }

    adder->ValBatch(0, static_cast<int64_t>(c.held_out), 1'000'000, &batch);
    std::set<Digits> validated;
    for (int64_t b = 0; b < batch.B; ++b) {
      const auto row = batch.tokens.begin() + b * batch.T;
      validated.insert(Digits(row, row + 2 * c.ndigit));
    }
    EXPECT_EQ(validated, held_out);
  }
}

TEST(Adder, SeedChoosesWhatIsHeldOut) {
  const auto prompts = [](uint64_t seed) {
    std::vector<Digits> all;
    for (const auto& problem : (*AdderBatches::Make(2, seed))->HeldOut())
      all.push_back(problem.prompt);
    return all;
  };
  EXPECT_EQ(prompts(4), prompts(4));
  EXPECT_NE(prompts(4), prompts(5));
  EXPECT_FALSE(AdderBatches::Make(0, 1).has_value());
  EXPECT_FALSE(AdderBatches::Make(4, 1).has_value());
}

}  // namespace
}  // namespace heed
