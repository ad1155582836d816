// Rotary positions, to be read. See RopeArgs.
#pragma once

#include "kernels/args.h"

namespace heed::reference {

template <class T>
void Rope(const RopeArgs<T>& a) {
  for (int64_t r = 0; r < a.B * a.T_; ++r) {
    const int64_t b = r / a.T_;
    const int64_t position = (a.offsets ? a.offsets[b] : a.offset) + r % a.T_;
    for (int64_t h = 0; h < a.heads; ++h) {
      T* x = a.x + r * a.row + h * a.D;
      for (int64_t i = 0; i < a.half; ++i) {
        T& x0 = a.interleaved ? x[2 * i] : x[i];
        T& x1 = a.interleaved ? x[2 * i + 1] : x[i + a.half];
        const T cos = a.cos[position * a.half + i];
        const T sin = a.inverse ? -a.sin[position * a.half + i] : a.sin[position * a.half + i];
        const T turned0 = x0 * cos - x1 * sin;
        const T turned1 = x0 * sin + x1 * cos;
        x0 = turned0;
        x1 = turned1;
      }
    }
  }
}

}  // namespace heed::reference
