#include "nn/embedding.h"

#include <algorithm>

namespace heed {

EmbeddingArgs<> Embedding::Args(const Pass& pass, const int32_t* tokens) const {
  EmbeddingArgs<> args{pass.B, pass.T, C, V, tokens, wte->values};
  args.wpe = wpe != nullptr ? wpe->values : sinusoidal.empty() ? nullptr : sinusoidal.data();
  args.offsets = pass.offsets;
  return args;
}

void Embedding::Forward(const Pass& pass, const int32_t* tokens, float* x) const {
  EmbeddingArgs<> args = Args(pass, tokens);
  args.x = x;
  pass.kernels->embedding_forward(args);
  const DropoutArgs dropout = pass.Dropout(dropout_site);
  if (dropout.p > 0) pass.kernels->dropout(x, pass.rows() * C, 0, dropout);
}

void Embedding::Backward(const Pass& pass, const int32_t* tokens, float* dx) const {
  const DropoutArgs dropout = pass.Dropout(dropout_site);
  if (dropout.p > 0) pass.kernels->dropout(dx, pass.rows() * C, 0, dropout);
  EmbeddingArgs<> args = Args(pass, tokens);
  args.dx = dx;
  args.dwte = wte->grad;
  if (wpe != nullptr) {
    args.dwpe = wpe->grad;
    args.accumulate = pass.accumulate;
    // Positions beyond T have no gradient in this batch.
    if (!pass.accumulate) {
      std::fill(wpe->grad + pass.T * C, wpe->grad + wpe->elements, 0.0f);
    }
  }
  pass.kernels->embedding_backward(args);
}

}  // namespace heed
