// SwiGLU (Shazeer 2020): h = silu(gate) · up with silu(x) = x · sigmoid(x).
#pragma once

#include <cmath>

#include "kernels/args.h"

namespace heed::reference {

template <class T>
void SwigluForward(const SwigluArgs<T>& args) {
  using std::exp;
  for (int64_t i = 0; i < args.n; ++i) {
    const T sigmoid = T(1) / (T(1) + exp(-args.gate[i]));
    args.h[i] = args.gate[i] * sigmoid * args.up[i];
  }
}

// silu'(x) = sigmoid(x) · (1 + x · (1 - sigmoid(x))).
template <class T>
void SwigluBackward(const SwigluArgs<T>& args) {
  using std::exp;
  for (int64_t i = 0; i < args.n; ++i) {
    const T gate = args.gate[i], up = args.up[i], dh = args.dh[i];
    const T sigmoid = T(1) / (T(1) + exp(-gate));
    const T silu = gate * sigmoid;
    args.h[i] = silu * up;
    args.gate[i] = dh * up * sigmoid * (T(1) + gate * (T(1) - sigmoid));
    args.up[i] = dh * silu;
  }
}

}  // namespace heed::reference
