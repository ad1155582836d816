// Softmax over the keys, and what stands in its place where it goes wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "verify/diagnose/attention_recipe.h"

namespace heed {

// Over n numbers `stride` apart, with `one` more in the sum; all -inf gives NaN, as 0/0 does.
void Softmax(double* values, int64_t n, int64_t stride, double one = 0);

struct ScoreShape {
  int64_t B, H, R, S;  // R rows of S keys
};

// Masked scores [B, H, R, S] to weights, in place. `settle`: called behind every softmax with the
// first index, the count and the stride of what it went over.
void ApplySoftmax(const SoftmaxChoice& choice, const ScoreShape& shape,
                  const std::function<void(int64_t, int64_t, int64_t)>& settle,
                  std::vector<double>* scores);

}  // namespace heed
