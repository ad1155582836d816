// Sums of arrays: a residual, a bias' gradient, a squared norm.
#pragma once

#include <cstdint>

#include "kernels/reference/wide.h"
#include "tensor/convert.h"

namespace heed::reference {

// y [n] += x [n].
template <class T>
void Add(T* y, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

// out [C] = (or +=) column sums of x [rows, C] with row stride ld.
template <class T>
void ColumnSum(const T* x, int64_t rows, int64_t C, int64_t ld, T* out, bool accumulate) {
  for (int64_t c = 0; c < C; ++c) {
    Wide<T> sum = accumulate ? out[c] : T(0);
    for (int64_t r = 0; r < rows; ++r) sum += x[r * ld + c];
    out[c] = static_cast<T>(sum);
  }
}

inline void ColumnSumBf16(const uint16_t* x, int64_t rows, int64_t C, int64_t ld, float* out,
                          bool accumulate) {
  for (int64_t c = 0; c < C; ++c) {
    double sum = accumulate ? out[c] : 0;
    for (int64_t r = 0; r < rows; ++r) sum += Bf16ToFloat(x[r * ld + c]);
    out[c] = static_cast<float>(sum);
  }
}

template <class T>
Wide<T> SumSquares(const T* x, int64_t n) {
  Wide<T> sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Wide<T>(x[i]) * x[i];
  return sum;
}

}  // namespace heed::reference
