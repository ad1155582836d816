// Token embedding plus, where there is one, position embedding.
#pragma once

#include "kernels/args.h"

namespace heed::reference {

template <class T>
void EmbeddingForward(const EmbeddingArgs<T>& args) {
  for (int64_t b = 0; b < args.B; ++b) {
    const int64_t offset = args.offsets == nullptr ? args.offset : args.offsets[b];
    for (int64_t t = 0; t < args.T_; ++t) {
      const int64_t row = b * args.T_ + t;
      for (int64_t c = 0; c < args.C; ++c) {
        T x = args.wte[args.tokens[row] * args.C + c];
        if (args.wpe != nullptr) x += args.wpe[(offset + t) * args.C + c];
        args.x[row * args.C + c] = x;
      }
    }
  }
}

template <class T>
void EmbeddingBackward(const EmbeddingArgs<T>& args) {
  for (int64_t row = 0; row < args.B * args.T_; ++row) {
    for (int64_t c = 0; c < args.C; ++c) {
      args.dwte[args.tokens[row] * args.C + c] += args.dx[row * args.C + c];
    }
  }
  if (args.dwpe == nullptr) return;
  for (int64_t t = 0; t < args.T_; ++t) {
    for (int64_t c = 0; c < args.C; ++c) {
      T sum = args.accumulate ? args.dwpe[t * args.C + c] : T(0);
      for (int64_t b = 0; b < args.B; ++b) sum += args.dx[(b * args.T_ + t) * args.C + c];
      args.dwpe[t * args.C + c] = sum;
    }
  }
}

}  // namespace heed::reference
