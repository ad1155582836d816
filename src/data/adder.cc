#include "data/adder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace heed {
namespace {

int64_t PowerOfTen(int64_t n) { return n == 0 ? 1 : 10 * PowerOfTen(n - 1); }

// `count` digits of `number`, the last one first.
void AppendReversed(int64_t number, int64_t count, std::vector<int32_t>* digits) {
  for (int64_t i = 0; i < count; ++i, number /= 10) {
    digits->push_back(static_cast<int32_t>(number % 10));
  }
}

}  // namespace

Result<std::unique_ptr<AdderBatches>> AdderBatches::Make(int64_t ndigit, uint64_t seed) {
  if (ndigit < 1 || ndigit > 3) {
    return BadRequest("ndigit", fmt::format("{}", ndigit), "1, 2 or 3");
  }
  auto adder = std::make_unique<AdderBatches>();
  adder->ndigit_ = ndigit;
  std::vector<int32_t>& problems = adder->problems_;
  problems.resize(static_cast<size_t>(PowerOfTen(2 * ndigit)));
  std::iota(problems.begin(), problems.end(), 0);
  const RandomKey key{seed, 0, kTextStream};
  for (size_t i = problems.size() - 1; i > 0; --i) {  // Fisher-Yates
    std::swap(problems[i], problems[RandomBelow(key, i, i + 1)]);
  }
  adder->held_out_ = std::min<int64_t>(static_cast<int64_t>(problems.size()) / 5, 500);
  return adder;
}

int64_t AdderBatches::train_tokens() const {
  return (static_cast<int64_t>(problems_.size()) - held_out_) * (block() + 1);
}

int64_t AdderBatches::val_tokens() const { return held_out_ * (block() + 1); }

std::vector<int32_t> AdderBatches::Digits(int32_t problem) const {
  const int64_t limit = PowerOfTen(ndigit_), a = problem / limit, b = problem % limit;
  std::vector<int32_t> digits;
  AppendReversed(problem, 2 * ndigit_, &digits);
  std::reverse(digits.begin(), digits.end());
  AppendReversed(a + b, ndigit_ + 1, &digits);
  return digits;
}

void AdderBatches::Fill(int32_t problem, int32_t* tokens, int32_t* targets) const {
  const std::vector<int32_t> digits = Digits(problem);
  std::copy(digits.begin(), digits.end() - 1, tokens);
  std::copy(digits.begin() + 1, digits.end(), targets);
  std::fill(targets, targets + 2 * ndigit_ - 1, -1);
}

std::vector<AdderBatches::Problem> AdderBatches::HeldOut() const {
  std::vector<Problem> held_out;
  for (int64_t i = 0; i < held_out_; ++i) {
    const std::vector<int32_t> digits = Digits(problems_[i]);
    const auto middle = digits.begin() + 2 * ndigit_;
    held_out.push_back({{digits.begin(), middle}, {middle, digits.end()}});
  }
  return held_out;
}

void AdderBatches::TrainRow(uint64_t seed, int64_t step, int64_t row, int32_t* tokens,
                            int32_t* targets) const {
  const RandomKey key{seed, static_cast<uint32_t>(step), kBatchStream};
  const uint64_t count = problems_.size() - static_cast<size_t>(held_out_);
  Fill(problems_[held_out_ + RandomBelow(key, static_cast<uint64_t>(row), count)], tokens, targets);
}

void AdderBatches::ValRow(int64_t window, int64_t windows, int32_t* tokens,
                          int32_t* targets) const {
  Fill(problems_[window * held_out_ / windows], tokens, targets);
}

}  // namespace heed
