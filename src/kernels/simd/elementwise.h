// Sums of kernels.h for the best instruction set; reference/elementwise.h shows what they compute.
#pragma once

#include <cstdint>

namespace heed::simd {

void Add(float* y, const float* x, int64_t n);
void ColumnSum(const float* x, int64_t rows, int64_t C, int64_t ld, float* out, bool accumulate);
void ColumnSumBf16(const uint16_t* x, int64_t rows, int64_t C, int64_t ld, float* out,
                   bool accumulate);
double SumSquares(const float* x, int64_t n);

}  // namespace heed::simd
