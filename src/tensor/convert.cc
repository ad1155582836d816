#include "tensor/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"

namespace heed {
namespace {

// Rounds to a 16-bit float of kExponent and kMantissa bits.
template <int kExponent, int kMantissa, class Source>
uint16_t Narrow(Source x) {
  using Limits = std::numeric_limits<Source>;
  using Bits = std::conditional_t<sizeof(Source) == 4, uint32_t, uint64_t>;
  constexpr int kSourceMantissa = Limits::digits - 1;
  constexpr int kSourceBias = Limits::max_exponent - 1, kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kTopExponent = (1 << kExponent) - 1;
  constexpr Bits kOne = 1, kImplicit = kOne << kSourceMantissa;
  constexpr Bits kSign = kOne << (8 * sizeof(Bits) - 1);

  const Bits bits = std::bit_cast<Bits>(x), magnitude = bits & ~kSign;
  const uint16_t sign = (bits & kSign) != 0 ? 0x8000 : 0;
  if (magnitude > std::bit_cast<Bits>(Limits::infinity())) {
    const auto payload =
        static_cast<uint16_t>((magnitude & (kImplicit - 1)) >> (kSourceMantissa - kMantissa));
    return sign | (kTopExponent << kMantissa) | (1 << (kMantissa - 1)) | payload;
  }
  const int field = static_cast<int>(magnitude >> kSourceMantissa);
  const Bits significand = (magnitude & (kImplicit - 1)) | (field > 0 ? kImplicit : 0);
  const int exponent = std::max(field, 1) - kSourceBias + kBias;
  if (exponent >= kTopExponent) return sign | (kTopExponent << kMantissa);
  // Below the smallest normal number the significand moves right and the exponent stays at 1,
  // without its implicit bit; beyond the significand's width nothing is left of it.
  const int shift = kSourceMantissa - kMantissa + std::max(1 - exponent, 0);
  if (shift > kSourceMantissa + 1) return sign;
  const Bits half = kOne << (shift - 1), rest = significand & ((kOne << shift) - 1);
  Bits rounded = significand >> shift;
  rounded += rest > half || (rest == half && (rounded & 1) != 0);
  // The implicit bit raises the exponent field by one; so does a carry, up to infinity.
  return static_cast<uint16_t>(sign + ((std::max(exponent, 1) - 1) << kMantissa) + rounded);
}

template <class Stored, class To, class Convert>
void DecodeEach(const std::byte* from, size_t n, To* to, Convert convert) {
  for (size_t i = 0; i < n; ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<To>(convert(stored));
  }
}

template <class From, class Convert>
void EncodeEach(const From* from, size_t n, std::byte* to, Convert convert) {
  for (size_t i = 0; i < n; ++i) {
    const auto stored = convert(from[i]);
    std::memcpy(to + i * sizeof(stored), &stored, sizeof(stored));
  }
}

}  // namespace

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t field = exponent == 31 ? 255 : exponent - 15 + 127;
  return std::bit_cast<float>(sign | field << 23 | mantissa << 13);
}

uint16_t FloatToF16(float x) { return Narrow<5, 10>(x); }
uint16_t DoubleToF16(double x) { return Narrow<5, 10>(x); }

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t FloatToBf16(float x) { return Narrow<8, 7>(x); }
uint16_t DoubleToBf16(double x) { return Narrow<8, 7>(x); }

template <class To>
void Decode(DType dtype, const std::byte* from, size_t n, To* to) {
  HEED_DCHECK(IsFloat(dtype));
  if (dtype == DType::kF64) DecodeEach<double>(from, n, to, [](double x) { return x; });
  if (dtype == DType::kF32) DecodeEach<float>(from, n, to, [](float x) { return x; });
  if (dtype == DType::kF16) DecodeEach<uint16_t>(from, n, to, F16ToFloat);
  if (dtype == DType::kBF16) DecodeEach<uint16_t>(from, n, to, Bf16ToFloat);
}

template <class From>
void Encode(DType dtype, const From* from, size_t n, std::byte* to) {
  HEED_DCHECK(IsFloat(dtype));
  if (dtype == DType::kF64) EncodeEach(from, n, to, [](From x) { return static_cast<double>(x); });
  if (dtype == DType::kF32) EncodeEach(from, n, to, [](From x) { return static_cast<float>(x); });
  if (dtype == DType::kF16) EncodeEach(from, n, to, [](From x) { return Narrow<5, 10>(x); });
  if (dtype == DType::kBF16) EncodeEach(from, n, to, [](From x) { return Narrow<8, 7>(x); });
}

template void Decode(DType, const std::byte*, size_t, float*);
template void Decode(DType, const std::byte*, size_t, double*);
template void Encode(DType, const float*, size_t, std::byte*);
template void Encode(DType, const double*, size_t, std::byte*);

}  // namespace heed
