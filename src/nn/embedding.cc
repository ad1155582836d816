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
  std::vector<float> rows;
  std::vector<int32_t> places;
  if (wte->values == nullptr) {
    // The rows that are looked up, as a table of their own.
    rows.resize(static_cast<size_t>(pass.rows() * C));
    places.resize(static_cast<size_t>(pass.rows()));
    for (int64_t r = 0; r < pass.rows(); ++r) {
      places[r] = static_cast<int32_t>(r);
      UnpackColumn(wte->packed, tokens[r], &rows[r * C]);
    }
    args.wte = rows.data();
    args.tokens = places.data();
  }
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
