// minGPT's addition: the digits of a and b, zero-padded, then those of a + b from the last to the
// first. 85 + 50 = 135 is "8550531". One token per digit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"

namespace heed {

class AdderBatches : public BatchSource {
 public:
  struct Problem {
    std::vector<int32_t> prompt;  // [2·ndigit]: a, b
    std::vector<int32_t> answer;  // [ndigit + 1]: the reversed sum
  };

  // All 10^(2·ndigit) problems in the seed's order; the first fifth, at most 500, are held out.
  // Errors (kRequest): ndigit outside 1..3.
  static Result<std::unique_ptr<AdderBatches>> Make(int64_t ndigit, uint64_t seed);

  int64_t block() const override { return 3 * ndigit_; }
  int64_t vocab_size() const override { return 10; }
  int64_t train_tokens() const override;
  int64_t val_tokens() const override;
  int64_t ValWindows() const override { return held_out_; }
  // Every counted digit follows from the prompt.
  std::optional<LossFloor> loss_floor(int64_t) const override { return LossFloor{}; }

  // The held-out problems, for scoring answers.
  std::vector<Problem> HeldOut() const;

 protected:
  void TrainRow(uint64_t seed, int64_t step, int64_t row, int32_t* tokens,
                int32_t* targets) const override;
  void ValRow(int64_t window, int64_t windows, int32_t* tokens, int32_t* targets) const override;

 private:
  // [3·ndigit + 1]
  std::vector<int32_t> Digits(int32_t problem) const;
  // Targets inside the prompt do not count.
  void Fill(int32_t problem, int32_t* tokens, int32_t* targets) const;

  int64_t ndigit_ = 2;
  int64_t held_out_ = 0;
  std::vector<int32_t> problems_;  // a·10^ndigit + b, in the seed's order
};

}  // namespace heed
