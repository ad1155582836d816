// How far two models of one vocabulary are apart on given tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"

namespace heed {

struct LogitDifference {
  double largest = 0;        // |a - b| over all logits; NaN counts as infinite
  double largest_logit = 0;  // |a|
  // Mean over positions of the Kullback-Leibler divergence of b's distribution from a's, in nats.
  double divergence = 0;
};

// Tokens [T] of the vocabulary of both, T at most the context of both. Error: not enough memory.
Result<LogitDifference> CompareModels(const Gpt& a, const Gpt& b,
                                      const std::vector<int32_t>& tokens);

}  // namespace heed
