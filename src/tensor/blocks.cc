#include "tensor/blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/convert.h"

namespace heed {
namespace {

constexpr int64_t kSmall = 32, kLarge = 256;  // numbers in a block

uint8_t Byte(const std::byte* at) { return static_cast<uint8_t>(*at); }

float Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToFloat(bits);
}

// Stores d in f16 and returns what to multiply by for whole steps: 0 for a block without steps.
float PutScale(float d, std::byte* at) {
  const uint16_t bits = FloatToF16(d);
  std::memcpy(at, &bits, sizeof(bits));
  return d == 0 || !std::isfinite(d) ? 0.0f : 1.0f / d;
}

// The number of largest size among 32; a NaN or an infinity where there is one.
float LargestOf(const float* x) {
  float largest = 0;
  for (int64_t i = 0; i < kSmall; ++i) {
    if (!std::isfinite(x[i])) return x[i];
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  }
  return largest;
}

void DecodeQ8_0(const std::byte* from, float* to) {
  const float d = Half(from);
  for (int64_t i = 0; i < kSmall; ++i) {
    to[i] = d * static_cast<float>(static_cast<int8_t>(Byte(from + 2 + i)));
  }
}

// The size of the largest among 32, an infinity or a NaN where there is one: of numbers without
// sign the bits are in their order.
float LargestSize(const float* x) {
  int32_t most = 0;
  for (int64_t i = 0; i < kSmall; ++i) {
    most = std::max(most, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

// std::round for numbers that an int holds, in steps that compilers turn into vectors.
float Rounded(float x) {
  const auto whole = static_cast<float>(static_cast<int>(x));
  const float rest = x - whole;
  return whole + (rest >= 0.5f ? 1.0f : 0.0f) - (rest <= -0.5f ? 1.0f : 0.0f);
}

void EncodeQ8_0(const float* from, std::byte* to) {
  const float scale = PutScale(LargestSize(from) / 127, to);
  int8_t q[kSmall] = {};
  for (int64_t i = 0; scale != 0 && i < kSmall; ++i) {
    q[i] = static_cast<int8_t>(std::clamp(Rounded(from[i] * scale), -127.0f, 127.0f));
  }
  std::memcpy(to + 2, q, sizeof(q));
}

void DecodeQ4_0(const std::byte* from, float* to) {
  const float d = Half(from);
  for (int64_t i = 0; i < kSmall / 2; ++i) {
    const int q = Byte(from + 2 + i);
    to[i] = d * static_cast<float>((q & 15) - 8);
    to[i + kSmall / 2] = d * static_cast<float>((q >> 4) - 8);
  }
}

void EncodeQ4_0(const float* from, std::byte* to) {
  const float scale = PutScale(LargestOf(from) / -8, to);
  const auto step = [scale](float x) {
    return scale == 0 ? 8 : static_cast<int>(std::clamp(x * scale + 8.5f, 0.0f, 15.0f));
  };
  for (int64_t i = 0; i < kSmall / 2; ++i) {
    to[2 + i] = static_cast<std::byte>(step(from[i]) | step(from[i + kSmall / 2]) << 4);
  }
}

// Pair j of the 12 bytes of 6-bit numbers: 4 pairs stand in the low bits of bytes j and j + 4, the
// other 4 in the half bytes behind and the two high bits of those before.
void UnpackPair(const std::byte* packed, int j, float* scale, float* minimum) {
  if (j < 4) {
    *scale = static_cast<float>(Byte(packed + j) & 63);
    *minimum = static_cast<float>(Byte(packed + j + 4) & 63);
    return;
  }
  const int low = Byte(packed + j + 4);
  *scale = static_cast<float>((low & 15) | (Byte(packed + j - 4) >> 6) << 4);
  *minimum = static_cast<float>((low >> 4) | (Byte(packed + j) >> 6) << 4);
}

void DecodeQ4_K(const std::byte* from, float* to) {
  const float d = Half(from), m = Half(from + 2);
  const std::byte *pairs = from + 4, *q = from + 16;
  for (int j = 0; j < 8; ++j) {
    float scale = 0, minimum = 0;
    UnpackPair(pairs, j, &scale, &minimum);
    const int shift = j % 2 * 4;
    for (int64_t i = 0; i < kSmall; ++i) {
      const int step = Byte(q + j / 2 * kSmall + i) >> shift & 15;
      to[j * kSmall + i] = d * scale * static_cast<float>(step) - m * minimum;
    }
  }
}

// Each half of the block is four runs of 32: low halves of 64 bytes, then their high halves; two
// more bits of each number stand in 32 bytes of `high`.
void DecodeQ6_K(const std::byte* from, float* to) {
  const std::byte *low = from, *high = from + 128, *scales = from + 192;
  const float d = Half(from + 208);
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int64_t i = 0; i < kSmall; ++i) {
        const int bits = Byte(low + half * 64 + run % 2 * kSmall + i) >> (run / 2 * 4) & 15;
        const int top = Byte(high + half * kSmall + i) >> (run * 2) & 3;
        const auto scale = static_cast<int8_t>(Byte(scales + half * 8 + run * 2 + i / 16));
        to[half * 128 + run * kSmall + i] =
            d * static_cast<float>(scale) * static_cast<float>((bits | top << 4) - 32);
      }
    }
  }
}

// The plain float type of the same numbers; nothing for blocks.
std::optional<DType> PlainType(BlockType type) {
  switch (type) {
    case BlockType::kF32:
      return DType::kF32;
    case BlockType::kF16:
      return DType::kF16;
    case BlockType::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::span<const EnumName<BlockType>> EnumNames(BlockType) {
  static constexpr EnumName<BlockType> kNames[] = {
      {BlockType::kF32, "f32"},   {BlockType::kF16, "f16"},   {BlockType::kBF16, "bf16"},
      {BlockType::kQ8_0, "q8_0"}, {BlockType::kQ4_0, "q4_0"}, {BlockType::kQ4_K, "q4_K"},
      {BlockType::kQ6_K, "q6_K"}};
  return kNames;
}

BlockSize SizeOf(BlockType type) {
  switch (type) {
    case BlockType::kF32:
      return {1, 4};
    case BlockType::kF16:
    case BlockType::kBF16:
      return {1, 2};
    case BlockType::kQ4_0:
      return {kSmall, 18};
    case BlockType::kQ8_0:
      return {kSmall, 34};
    case BlockType::kQ4_K:
      return {kLarge, 144};
    case BlockType::kQ6_K:
      return {kLarge, 210};
  }
  return {};
}

std::optional<BlockType> BlockTypeOf(uint32_t id) {
  for (const EnumName<BlockType>& entry : EnumNames(BlockType{})) {
    if (static_cast<uint32_t>(entry.value) == id) return entry.value;
  }
  return std::nullopt;
}

bool CanEncode(BlockType type) { return type != BlockType::kQ4_K && type != BlockType::kQ6_K; }

void DecodeBlocks(BlockType type, const std::byte* from, int64_t n, float* to) {
  if (const std::optional<DType> plain = PlainType(type)) {
    return Decode(*plain, from, static_cast<size_t>(n), to);
  }
  const BlockSize size = SizeOf(type);
  HEED_DCHECK(n % size.elements == 0);
  const auto decode = type == BlockType::kQ8_0   ? DecodeQ8_0
                      : type == BlockType::kQ4_0 ? DecodeQ4_0
                      : type == BlockType::kQ4_K ? DecodeQ4_K
                                                 : DecodeQ6_K;
  for (; n > 0; n -= size.elements, from += size.bytes, to += size.elements) decode(from, to);
}

void EncodeBlocks(BlockType type, const float* from, int64_t n, std::byte* to) {
  HEED_DCHECK(CanEncode(type));
  if (const std::optional<DType> plain = PlainType(type)) {
    return Encode(*plain, from, static_cast<size_t>(n), to);
  }
  const BlockSize size = SizeOf(type);
  HEED_DCHECK(n % size.elements == 0);
  const auto encode = type == BlockType::kQ8_0 ? EncodeQ8_0 : EncodeQ4_0;
  for (; n > 0; n -= size.elements, from += size.elements, to += size.bytes) encode(from, to);
}

}  // namespace heed
