// Panels of few bits: a layout by hand, and back to the numbers of the stored rows.
#include "tensor/packed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "support/compare.h"
#include "tensor/convert.h"

namespace heed {
namespace {

constexpr BlockType kTypes[] = {BlockType::kBF16, BlockType::kQ8_0, BlockType::kQ4_0};

bool SameBits(const float* x, const float* y, int64_t n) {
  return std::memcmp(x, y, static_cast<size_t>(n) * sizeof(float)) == 0;
}

struct Aligned {
  explicit Aligned(int64_t bytes) : lines(static_cast<size_t>(bytes + 63) / 64) {}
  std::byte* data() { return lines.front().bytes; }

  struct Line {
    alignas(64) std::byte bytes[64];
  };
  std::vector<Line> lines;
};

TEST(Packed, LayoutByHand) {
  // One column of a block: -127 .. and the scale 1.
  std::vector<std::byte> row(34);
  const uint16_t one = FloatToF16(1);
  std::memcpy(row.data(), &one, 2);
  for (int k = 0; k < 32; ++k) row[2 + k] = static_cast<std::byte>(k - 16);
  ASSERT_EQ(PackedBytes(BlockType::kQ8_0, 32, 1), 16 * 34);
  Aligned packed(16 * 34);
  PackStored(BlockType::kQ8_0, 32, 1, row.data(), {}, packed.data());
  const PackedB q8{BlockType::kQ8_0, 32, 1, packed.data()};
  // Bytes -16 .. -13 are 112 .. 115; all other columns are 0.
  EXPECT_EQ(q8.Panel(0)[0], 0x73727170u);
  EXPECT_EQ(q8.Panel(0)[16 * 7], 0x8f8e8d8cu);
  EXPECT_EQ(q8.Scales(0)[0], one);
  for (int c = 1; c < 16; ++c) EXPECT_EQ(q8.Scales(0)[c], 0);

  row.resize(18);
  for (int i = 0; i < 16; ++i) row[2 + i] = static_cast<std::byte>(i | (15 - i) << 4);
  PackStored(BlockType::kQ4_0, 32, 1, row.data(), {}, packed.data());
  const PackedB q4{BlockType::kQ4_0, 32, 1, packed.data()};
  EXPECT_EQ(PackedBytes(BlockType::kQ4_0, 32, 17), 2 * 16 * 18);
  EXPECT_EQ(q4.Panel(0)[0], 0xc3d2e1f0u);
  std::vector<float> column(32);
  UnpackColumn(q4, 0, column.data());
  for (int k = 0; k < 16; ++k) {
    EXPECT_EQ(column[k], k - 8);
    EXPECT_EQ(column[k + 16], 7 - k);
  }

  const std::vector<float> numbers = {1, -2, 0.5};
  PackFloats(BlockType::kBF16, 3, 1, numbers.data(), 1, 3, packed.data());
  const PackedB bf16{BlockType::kBF16, 3, 1, packed.data()};
  EXPECT_EQ(PackedBytes(BlockType::kBF16, 3, 1), 2 * 16 * 4);
  EXPECT_EQ(bf16.Panel(0)[0], 0xc0003f80u);
  EXPECT_EQ(bf16.Panel(0)[16], 0x00003f00u);
  for (int c = 1; c < 16; ++c) EXPECT_EQ(bf16.Panel(0)[c], 0u);
}

// From numbers in either order and from stored rows in any order: what EncodeBlocks makes of a
// column comes back as DecodeBlocks has it.
TEST(Packed, ColumnsComeBackAsTheirBlocksHaveThem) {
  for (const BlockType type : kTypes) {
    for (const auto& [K, N] : {std::pair<int64_t, int64_t>{64, 33}, {32, 16}, {96, 1}, {7, 5}}) {
      if (!CanPack(type, K)) continue;
      const BlockSize size = SizeOf(type);
      const std::vector<float> columns = RandomArray<float>(K * N, 3);
      std::vector<float> rows(columns.size()), want(columns.size()), got(K);
      std::vector<std::byte> stored(N * K / size.elements * size.bytes);
      const int64_t row_bytes = K / size.elements * size.bytes;
      for (int64_t j = 0; j < N; ++j) {
        EncodeBlocks(type, &columns[j * K], K, &stored[j * row_bytes]);
        DecodeBlocks(type, &stored[j * row_bytes], K, &want[j * K]);
        for (int64_t k = 0; k < K; ++k) rows[k * N + j] = columns[j * K + k];
      }
      std::vector<int64_t> reversed(N);
      std::iota(reversed.rbegin(), reversed.rend(), 0);
      Aligned packed(PackedBytes(type, K, N));
      const PackedB b{type, K, N, packed.data()};
      for (int way = 0; way < 4; ++way) {
        if (way == 0) PackFloats(type, K, N, columns.data(), 1, K, packed.data());
        if (way == 1) PackFloats(type, K, N, rows.data(), N, 1, packed.data());
        if (way == 2) PackStored(type, K, N, stored.data(), {}, packed.data());
        if (way == 3) PackStored(type, K, N, stored.data(), reversed, packed.data());
        for (int64_t j = 0; j < N; ++j) {
          UnpackColumn(b, j, got.data());
          const int64_t from = way == 3 ? N - 1 - j : j;
          EXPECT_TRUE(SameBits(got.data(), &want[from * K], K)) << NameOf(type) << way << " " << j;
        }
      }
    }
  }
}

TEST(Packed, BlocksAreWhole) {
  EXPECT_TRUE(CanPack(BlockType::kBF16, 7));
  EXPECT_TRUE(CanPack(BlockType::kQ8_0, 64));
  EXPECT_FALSE(CanPack(BlockType::kQ8_0, 48));
  EXPECT_FALSE(CanPack(BlockType::kQ4_0, 31));
  EXPECT_FALSE(CanPack(BlockType::kF32, 32));
  EXPECT_FALSE(CanPack(BlockType::kQ6_K, 256));
}

}  // namespace
}  // namespace heed
