// Between stored number types and the ones that are computed with. Rounding is to nearest, ties to
// even; subnormals are kept; what overflows becomes an infinity; a NaN stays a NaN with its sign
// and the high bits of its payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace heed {

// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
float F16ToFloat(uint16_t bits);
uint16_t FloatToF16(float x);
uint16_t DoubleToF16(double x);

// bfloat16: the upper half of a float.
float Bf16ToFloat(uint16_t bits);
uint16_t FloatToBf16(float x);
uint16_t DoubleToBf16(double x);

// n numbers of a float dtype (IsFloat) at `from`, of any alignment, as To = float or double.
template <class To>
void Decode(DType dtype, const std::byte* from, size_t n, To* to);

// n numbers of From = float or double, rounded once, into a float dtype (IsFloat) at `to`, of any
// alignment.
template <class From>
void Encode(DType dtype, const From* from, size_t n, std::byte* to);

}  // namespace heed
