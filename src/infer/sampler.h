// From logits to the next token: repetition penalty, temperature, top-k, top-p, min-p, in that
// order, renormalised after each filter; then one draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace heed {

struct SamplingSettings {
  double temperature = 1.0;         // 0 is greedy
  int64_t top_k = 0;                // 0 keeps all; ties with the k-th are kept
  double top_p = 1.0;               // smallest set of likeliest tokens whose probability reaches p
  double min_p = 0.0;               // least probability, relative to the largest
  double repetition_penalty = 1.0;  // Keskar et al. 2019; negative logits are multiplied

  // Every range; NaN is in none.
  Status Validate() const;
};

// The distribution that the next token is drawn from, [V], from logits [V] and the tokens so far.
// At temperature 0 all of it is on the largest logit (the first of equals). Values in double.
std::vector<double> SamplingProbabilities(const SamplingSettings& settings,
                                          std::span<const float> logits,
                                          std::span<const int32_t> previous);

// The same where nothing but the largest of finite logits counts: its index, the first of equals.
int32_t LargestLogit(std::span<const float> logits);

// The token at which the cumulative distribution passes u in [0, 1).
int32_t Draw(std::span<const double> probabilities, double u);

}  // namespace heed
