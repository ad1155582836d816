// How far right numbers may lie from ours: rounding of what was stored, and of how it was computed.
#pragma once

#include <span>

#include "tensor/dtype.h"

namespace heed {

// Relative to the Euclidean norm of a whole tensor.
struct NoiseFloor {
  // The result rounded into its type, a few units, everything else as in double.
  double storage = 0;
  // The whole computation in the coarsest type at hand, or with its inputs rounded behind its back.
  // At least float32's: numbers stored as F64 were often computed with float32 tables.
  double arithmetic = 0;
  // Residuals no further apart are equally good: a true explanation leaves the rounding alone, a
  // false one adds its own distance squared. One number alone has no such square.
  double tie = 2 * 0x1p-24;
};

// The largest relative error of rounding to nearest: 2^-53 for F64, 2^-24, 2^-11, 2^-9 for BF16.
double UnitRoundoff(DType dtype);

// The float dtype with the largest UnitRoundoff; F64 for none. Other dtypes do not count.
DType CoarsestOf(std::span<const DType> dtypes);

// The dtype among F64, F32, F16 and BF16, `stored` or coarser, that holds all `values` exactly:
// numbers are often widened only to be saved. `stored` when there are less than eight distinct
// magnitudes to tell it by.
DType EffectiveDType(DType stored, std::span<const double> values);

// Typical floors for results of `output` computed from inputs of `coarsest`.
NoiseFloor NoiseFloorOf(DType output, DType coarsest);

}  // namespace heed
