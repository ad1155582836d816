// ggml's stored number types: plain floats, and blocks of 32 or 256 numbers in few bits that share
// a scale. Source: ggml-common.h and ggml-quants.c of ggml-org/llama.cpp define the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/fields.h"

namespace heed {

// The values are ggml's own, as GGUF files have them.
enum class BlockType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,   // 32 numbers: f16 scale d, 16 bytes; x = d (q - 8), q of 4 bits
  kQ8_0 = 8,   // 32 numbers: f16 scale d, 32 bytes; x = d q, q of 8 bits
  kQ4_K = 12,  // 256 numbers: f16 d and m, 8 pairs of 6 bits s and t; x = d s q - m t, q of 4 bits
  kQ6_K = 14,  // 256 numbers: 16 scales s of 8 bits, f16 d; x = d s (q - 32), q of 6 bits
  kBF16 = 30,
};

std::span<const EnumName<BlockType>> EnumNames(BlockType);

struct BlockSize {
  int64_t elements = 1;
  int64_t bytes = 1;
};
BlockSize SizeOf(BlockType type);

// Whether ggml's number `id` is one of the types above.
std::optional<BlockType> BlockTypeOf(uint32_t id);

// Whether EncodeBlocks knows the type.
bool CanEncode(BlockType type);

// n numbers from the little-endian blocks at `from`, of any alignment; n is a multiple of the
// block's elements.
void DecodeBlocks(BlockType type, const std::byte* from, int64_t n, float* to);

// The other way, rounded as ggml's reference code does: to the nearest step, q8_0's scale the
// largest number / 127, q4_0's the number of largest size / -8. In a block with a number that is
// not finite, all others become 0.
void EncodeBlocks(BlockType type, const float* from, int64_t n, std::byte* to);

}  // namespace heed
