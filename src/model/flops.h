// Floating-point operations of a pass, counted from the layers themselves: those of the matrix
// products, a multiply-add as two. Norms, softmax and activation functions, below a percent at any
// usual width, count as none.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "model/gpt.h"

namespace heed {

// By the tensor of the plan that they make (see Activations), for B sequences of T positions with
// logits at each. Of the scores and their weighted sums only the causal half counts: T(T+1)/2 pairs
// for each head.
std::unordered_map<std::string, int64_t> ForwardFlops(const Gpt& model, int64_t B, int64_t T);

int64_t TotalForwardFlops(const Gpt& model, int64_t B, int64_t T);

// Forward, and twice that backward: each product has a gradient for either factor (Chowdhery et al.
// 2022, appendix B). What kernels compute again in place of storing it is not counted.
int64_t TrainingStepFlops(const Gpt& model, int64_t B, int64_t T);

}  // namespace heed
