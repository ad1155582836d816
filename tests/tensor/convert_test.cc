#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The value of a 16-bit float by the formats' definition: (-1)^s · 2^(e - bias) · 1.m.
double Value(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int field = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double mantissa = std::ldexp(bits & ((1 << mantissa_bits) - 1), -mantissa_bits);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (field == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * kInfinity : std::numeric_limits<double>::quiet_NaN();
  }
  return sign *
         (field == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, field - bias));
}

struct Format {
  int exponent_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow_float)(float);
  uint16_t (*narrow_double)(double);
};
constexpr Format kFormats[] = {{5, F16ToFloat, FloatToF16, DoubleToF16},
                               {8, Bf16ToFloat, FloatToBf16, DoubleToBf16}};

TEST(Convert, EveryNumberOf16BitsHasItsDefinedValueAndComesBack) {
  for (const Format& format : kFormats) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const double want = Value(bits, format.exponent_bits);
      const float got = format.widen(bits);
      if (std::isnan(want)) {
        const int quiet = 1 << (14 - format.exponent_bits);
        ASSERT_TRUE(std::isnan(got)) << bits;
        ASSERT_EQ(format.narrow_float(got), bits | quiet) << bits;
        ASSERT_EQ(format.narrow_double(static_cast<double>(got)), bits | quiet) << bits;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(static_cast<float>(want)));
        ASSERT_EQ(format.narrow_float(got), bits);
        ASSERT_EQ(format.narrow_double(want), bits);
      }
    }
  }
}

// Rounding is monotone, so what happens at and beside every midpoint decides all numbers.
TEST(Convert, EveryMidpointRoundsToEvenAndItsNeighboursToTheNearest) {
  for (const Format& format : kFormats) {
    const int top = ((1 << format.exponent_bits) - 1) << (15 - format.exponent_bits);
    for (int i = 0; i < top; ++i) {
      const auto low = static_cast<uint16_t>(i), high = static_cast<uint16_t>(i + 1);
      const double below = Value(low, format.exponent_bits);
      // The number after the largest finite one, had the format one more exponent.
      const double above = i + 1 == top ? 2 * below - Value(low - 1, format.exponent_bits)
                                        : Value(high, format.exponent_bits);
      const double middle = (below + above) / 2;
      const uint16_t even = i % 2 == 0 ? low : high;
      for (const int sign : {0, 0x8000}) {
        const double s = sign == 0 ? 1 : -1;
        ASSERT_EQ(format.narrow_double(s * middle), sign | even) << i;
        ASSERT_EQ(format.narrow_double(s * std::nextafter(middle, 0.0)), sign | low) << i;
        ASSERT_EQ(format.narrow_double(s * std::nextafter(middle, kInfinity)), sign | high) << i;
        const auto narrow = static_cast<float>(middle);
        ASSERT_EQ(static_cast<double>(narrow), middle) << i;
        ASSERT_EQ(format.narrow_float(static_cast<float>(s) * narrow), sign | even) << i;
        ASSERT_EQ(format.narrow_float(static_cast<float>(s) * std::nextafter(narrow, 0.0f)),
                  sign | low);
        ASSERT_EQ(format.narrow_float(static_cast<float>(s) * std::nextafter(narrow, HUGE_VALF)),
                  sign | high);
      }
    }
  }
}

TEST(Convert, ExtremesOfTheSourcesBecomeZeroOrInfinity) {
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(DoubleToF16(-std::numeric_limits<double>::max()), 0xfc00);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(DoubleToF16(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(DoubleToBf16(-std::numeric_limits<double>::denorm_min()), 0x8000);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);  // the largest that stays finite
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
}

// 1 + 2^-11 + 2^-30 lies above a midpoint of F16, but rounds onto it on the way through a float.
TEST(Convert, ADoubleIsRoundedOnce) {
  const double x = 1 + 0x1p-11 + 0x1p-30;
  EXPECT_EQ(FloatToF16(static_cast<float>(x)), 0x3c00);
  EXPECT_EQ(DoubleToF16(x), 0x3c01);
}

TEST(Convert, ArraysOfEveryFloatTypeFromAnyAlignment) {
  const std::vector<double> numbers = {0, -0.0, 1.5, -2.25, 1024, 0x1p-14};  // exact in all types
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const size_t width = SizeOf(dtype), n = numbers.size();
    std::vector<std::byte> stored(n * width + 1);
    Encode(dtype, numbers.data(), n, stored.data() + 1);
    std::vector<float> floats(n);
    Decode(dtype, stored.data() + 1, n, floats.data());
    std::vector<double> doubles(n);
    Decode(dtype, stored.data() + 1, n, doubles.data());
    std::vector<std::byte> again(n * width);
    Encode(dtype, floats.data(), n, again.data());
    EXPECT_EQ(std::memcmp(again.data(), stored.data() + 1, again.size()), 0) << NameOf(dtype);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(doubles[i], numbers[i]) << NameOf(dtype);
      EXPECT_EQ(std::signbit(doubles[i]), std::signbit(numbers[i])) << NameOf(dtype);
    }
  }
}

}  // namespace
}  // namespace heed
