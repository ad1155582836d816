// Number types of stored arrays, named and laid out as safetensors has them (little-endian).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fields.h"

namespace heed {

static_assert(std::endian::native == std::endian::little, "arrays are read in place");

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,  // one byte, 0 or 1
};

inline std::span<const EnumName<DType>> EnumNames(DType) {
  static constexpr EnumName<DType> kNames[] = {
      {DType::kF64, "F64"},  {DType::kF32, "F32"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
      {DType::kI64, "I64"},  {DType::kI32, "I32"}, {DType::kI16, "I16"}, {DType::kI8, "I8"},
      {DType::kU64, "U64"},  {DType::kU32, "U32"}, {DType::kU16, "U16"}, {DType::kU8, "U8"},
      {DType::kBool, "BOOL"}};
  return kNames;
}

// Bytes of one element.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

}  // namespace heed
