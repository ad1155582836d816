// ggml's blocks, against bytes laid out by hand from the format's definition.
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/compare.h"
#include "tensor/convert.h"

namespace heed {
namespace {

// Writes a block field by field.
struct Bytes {
  std::string text;
  void Half(float x) {
    const uint16_t bits = FloatToF16(x);
    text.append(reinterpret_cast<const char*>(&bits), 2);
  }
  void Byte(int x) { text += static_cast<char>(x); }
};

std::vector<float> Decoded(BlockType type, const std::string& bytes) {
  const BlockSize size = SizeOf(type);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()) % size.bytes, 0);
  const int64_t n = static_cast<int64_t>(bytes.size()) / size.bytes * size.elements;
  std::vector<float> out(n);
  DecodeBlocks(type, reinterpret_cast<const std::byte*>(bytes.data()), n, out.data());
  return out;
}

std::string Encoded(BlockType type, const std::vector<float>& x) {
  const BlockSize size = SizeOf(type);
  std::string bytes(x.size() / size.elements * size.bytes, '\0');
  EncodeBlocks(type, x.data(), static_cast<int64_t>(x.size()),
               reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

TEST(Blocks, Q8_0IsAScaleAndThirtyTwoSignedBytes) {
  Bytes block;
  block.Half(0.5f);
  for (int i = 0; i < 32; ++i) block.Byte(i * 8 - 128);
  const std::vector<float> x = Decoded(BlockType::kQ8_0, block.text);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(x[i], 0.5f * float(i * 8 - 128)) << i;
}

TEST(Blocks, Q4_0KeepsTheSecondHalfInTheHighBits) {
  Bytes block;
  block.Half(2.0f);
  for (int i = 0; i < 16; ++i) block.Byte(i | (15 - i) << 4);
  const std::vector<float> x = Decoded(BlockType::kQ4_0, block.text);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(x[i], 2.0f * float(i - 8)) << i;
    EXPECT_EQ(x[i + 16], 2.0f * float(7 - i)) << i;
  }
}

TEST(Blocks, Q4_KUnpacksEightPairsOfSixBits) {
  // Scales and minima that use all six bits, packed as the format says.
  const int scale[8] = {1, 63, 17, 32, 63, 5, 48, 21}, minimum[8] = {0, 62, 33, 7, 16, 63, 50, 12};
  int packed[12] = {};
  for (int j = 0; j < 4; ++j) {
    packed[j] = scale[j] | (scale[j + 4] >> 4) << 6;
    packed[j + 4] = minimum[j] | (minimum[j + 4] >> 4) << 6;
    packed[j + 8] = (scale[j + 4] & 15) | (minimum[j + 4] & 15) << 4;
  }
  Bytes block;
  block.Half(0.25f);
  block.Half(0.5f);
  for (const int byte : packed) block.Byte(byte);
  const auto q = [](int i) { return (i * 7 + i / 32) & 15; };
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      block.Byte(q(pair * 64 + i) | q(pair * 64 + 32 + i) << 4);
    }
  }
  const std::vector<float> x = Decoded(BlockType::kQ4_K, block.text);
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(x[i], 0.25f * float(scale[i / 32] * q(i)) - 0.5f * float(minimum[i / 32])) << i;
  }
}

TEST(Blocks, Q6_KPutsTogetherLowAndHighBits) {
  const auto q = [](int i) { return (i * 11 + i / 64) & 63; };
  const auto scale = [](int i) { return (i * 37) % 256 - 128; };
  int low[128] = {}, high[64] = {};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 128; ++i) {  // number i of the half: low bits in one of 64 bytes
      const int value = q(half * 128 + i);
      low[half * 64 + i % 64] |= (value & 15) << (i / 64 * 4);
      high[half * 32 + i % 32] |= (value >> 4) << (i / 32 * 2);
    }
  }
  Bytes block;
  for (const int byte : low) block.Byte(byte);
  for (const int byte : high) block.Byte(byte);
  for (int i = 0; i < 16; ++i) block.Byte(scale(i));
  block.Half(0.125f);
  const std::vector<float> x = Decoded(BlockType::kQ6_K, block.text);
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(x[i], 0.125f * float(scale(i / 16)) * float(q(i) - 32)) << i;
  }
}

// Half a step of each block's scale, and what rounding the scale itself to f16 adds to the largest.
TEST(Blocks, EncodingRoundsToTheNearestStep) {
  const std::vector<float> x = RandomArray(32 * 50, 1);
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
    const std::vector<float> y = Decoded(type, Encoded(type, x));
    for (size_t block = 0; block < x.size(); block += 32) {
      float largest = 0;
      for (int i = 0; i < 32; ++i) {
        if (std::abs(x[block + i]) > std::abs(largest)) largest = x[block + i];
      }
      const float step = std::abs(largest) / (type == BlockType::kQ8_0 ? 127 : 8);
      for (int i = 0; i < 32; ++i) {
        // q4_0 has a step less on the side away from its largest number.
        const bool cut = type == BlockType::kQ4_0 && x[block + i] * largest < 0 &&
                         std::abs(x[block + i]) > 7.5f * step;
        const float bound = (cut ? 1.0f : 0.5f) * step + std::abs(largest) * 0x1p-11f;
        EXPECT_NEAR(x[block + i], y[block + i], bound * 1.0001f) << block + i;
      }
    }
  }
}

TEST(Blocks, WhatIsOnTheStepsIsKept) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[i] = 0.5f * float(i % 16 - 8);
  EXPECT_EQ(Decoded(BlockType::kQ4_0, Encoded(BlockType::kQ4_0, x)), x);
  for (int i = 0; i < 32; ++i) x[i] = 0.25f * float(i * 8 - 127);
  x[31] = -0.25f * 127;
  EXPECT_EQ(Decoded(BlockType::kQ8_0, Encoded(BlockType::kQ8_0, x)), x);
  const std::vector<float> zeros(32);
  EXPECT_EQ(Decoded(BlockType::kQ8_0, Encoded(BlockType::kQ8_0, zeros)), zeros);
  EXPECT_EQ(Decoded(BlockType::kQ4_0, Encoded(BlockType::kQ4_0, zeros)), zeros);
}

TEST(Blocks, ANumberThatIsNotFiniteShows) {
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
    std::vector<float> x(32, 1.0f);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    bool finite = true;
    for (const float y : Decoded(type, Encoded(type, x))) finite = finite && std::isfinite(y);
    EXPECT_FALSE(finite);
  }
}

}  // namespace
}  // namespace heed
