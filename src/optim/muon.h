// Muon (Jordan et al. 2024): momentum, with every matrix of it replaced by one whose singular
// values are all about 1, so that an update moves in all directions alike.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace heed {

// One update of a matrix [rows, cols] with row stride `row`. With g' = grad_scale · g:
//   m = momentum · m + g',  o = orthogonalised (g' + momentum · m),
//   p = p (1 - lr·weight_decay) - lr · 0.2 · sqrt(max(rows, cols)) · o
// The factor gives updates the size of AdamW's (Liu et al. 2025, section 2.2).
struct MuonArgs {
  int64_t rows = 0, cols = 0, row = 0;
  float* param = nullptr;
  const float* grad = nullptr;
  float* m = nullptr;
  double learning_rate = 0, momentum = 0.9, weight_decay = 0;
  double grad_scale = 1;  // clipping
};

// `scratch` grows to what is needed: 2 · rows · cols + 2 · min(rows, cols)² floats.
void MuonStep(const Kernels& kernels, const MuonArgs& args, std::vector<float>* scratch);

}  // namespace heed
