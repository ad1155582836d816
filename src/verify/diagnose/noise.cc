#include "verify/diagnose/noise.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tensor/convert.h"

namespace heed {
namespace {

bool Holds(DType dtype, std::span<const double> values) {
  return std::ranges::all_of(values, [dtype](double value) {
    std::byte bytes[sizeof(double)];
    double back = 0;
    Encode(dtype, &value, 1, bytes);
    Decode(dtype, bytes, 1, &back);
    return back == value || std::isnan(value);
  });
}

bool HasManyMagnitudes(std::span<const double> values) {
  std::set<double> magnitudes;
  for (const double value : values) {
    if (std::isfinite(value)) magnitudes.insert(std::abs(value));
    if (magnitudes.size() >= 8) return true;
  }
  return false;
}

}  // namespace

double UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-9;
    default:
      return 0x1p-53;
  }
}

DType CoarsestOf(std::span<const DType> dtypes) {
  DType coarsest = DType::kF64;
  for (const DType dtype : dtypes) {
    if (IsFloat(dtype) && UnitRoundoff(dtype) > UnitRoundoff(coarsest)) coarsest = dtype;
  }
  return coarsest;
}

DType EffectiveDType(DType stored, std::span<const double> values) {
  if (!HasManyMagnitudes(values)) return stored;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (UnitRoundoff(dtype) <= UnitRoundoff(stored)) continue;
    if (Holds(dtype, values)) return dtype;
  }
  return stored;
}

NoiseFloor NoiseFloorOf(DType output, DType coarsest) {
  // Rounding to nearest leaves about 0.6 of the unit roundoff in the norm; whole computations in a
  // type leave a few of them. 1e-13 is double's own order of summation.
  const double storage = std::max(2 * UnitRoundoff(output), 1e-13);
  const DType both[] = {output, coarsest};
  const double arithmetic =
      3 * UnitRoundoff(CoarsestOf(both)) + 160 * UnitRoundoff(DType::kF32);  // 1e-5 for F32
  return {.storage = std::min(storage, arithmetic), .arithmetic = arithmetic};
}

}  // namespace heed
