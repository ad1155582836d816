// Inverted dropout (Srivastava et al. 2014; scaled in training).
#pragma once

#include "kernels/args.h"

namespace heed::reference {

// x [n] in place; element i has index first + i. The same call on a gradient is the backward pass.
template <class T>
void Dropout(T* x, int64_t n, uint64_t first, const DropoutArgs& args) {
  const T factor = static_cast<T>(1.0 / (1.0 - args.p));
  for (int64_t i = 0; i < n; ++i) {
    const bool keep = RandomUniform(args.key, first + i) >= args.p;
    x[i] = keep ? x[i] * factor : T(0);
  }
}

}  // namespace heed::reference
