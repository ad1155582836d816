// Tokens to vectors, with the positions that are added to them: a learned table, the fixed
// sinusoidal one, or none.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/pass.h"
#include "tensor/parameters.h"

namespace heed {

struct Embedding {
  int64_t C = 0, V = 0;
  uint32_t dropout_site = 0;
  Parameter* wte = nullptr;       // [V, C]
  Parameter* wpe = nullptr;       // [block_size, C], or null
  std::vector<float> sinusoidal;  // [block_size, C], or empty

  // x [B, T, C] from tokens [B, T], each in [0, V).
  void Forward(const Pass& pass, const int32_t* tokens, float* x) const;
  // dx [B, T, C] is changed by the dropout mask. wte's gradient is added to; positions start at 0.
  void Backward(const Pass& pass, const int32_t* tokens, float* dx) const;

 private:
  EmbeddingArgs<> Args(const Pass& pass, const int32_t* tokens) const;
};

}  // namespace heed
