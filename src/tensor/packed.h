// The right side of products as inference keeps it in few bits: b [K, N] in panels of 16 columns,
// in bfloat16 or in ggml's blocks (tensor/blocks.h). A product reads such a panel from one end to
// the other, a column in each lane of its vectors.
//
// A panel is [words of K][16] words of four bytes of its columns:
//   bf16  two numbers, the lower one first; one behind the end of an odd K is 0
//   q8_0  four numbers as q + 128: processors multiply unsigned bytes by signed ones
//   q4_0  eight numbers: word g of a block's four holds 4g .. 4g + 3 in the lower halves of its
//         bytes, and those 16 further in the upper halves
// Behind all panels stand the scales of blocks, f16, [panels][K / 32][16]. Columns from N on are 0.
//
// A B of f32 is never packed: its columns stand in its file's rows, maybe in another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/blocks.h"

namespace heed {

inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kBlockNumbers = 32;  // of K, that share a scale

struct PackedB {
  BlockType type = BlockType::kBF16;
  int64_t K = 0, N = 0;
  const std::byte* data = nullptr;  // PackedBytes of them, aligned to 64
  // While data is null, what PackStored would pack: products pack the columns that they are at,
  // but read those of f32 as they stand.
  const std::byte* rows = nullptr;
  std::span<const int64_t> order = {};

  bool empty() const { return data == nullptr && rows == nullptr; }
  bool waits() const { return data == nullptr && rows != nullptr && type != BlockType::kF32; }
  bool scaled() const { return type == BlockType::kQ8_0 || type == BlockType::kQ4_0; }
  int64_t panels() const { return (N + kPanelColumns - 1) / kPanelColumns; }
  int64_t words() const {
    return type == BlockType::kBF16 ? (K + 1) / 2 : K / (type == BlockType::kQ8_0 ? 4 : 8);
  }
  // Row j of the stored ones: column j.
  const std::byte* Row(int64_t j) const {
    const BlockSize size = SizeOf(type);
    return rows + (order.empty() ? j : order[j]) * (K / size.elements * size.bytes);
  }
  const uint32_t* Panel(int64_t panel) const {
    return reinterpret_cast<const uint32_t*>(data) + panel * words() * kPanelColumns;
  }
  const uint16_t* Scales(int64_t panel) const {
    return reinterpret_cast<const uint16_t*>(Panel(panels())) +
           panel * (K / kBlockNumbers) * kPanelColumns;
  }
};

// Whether b can be packed so: in bf16 always, in q8_0 and q4_0 when K is whole blocks.
bool CanPack(BlockType type, int64_t K);
int64_t PackedBytes(BlockType type, int64_t K, int64_t N);

// Packs the stored rows [N, K] of `type`, of any alignment, as b's columns: no number changes.
// Column j is row order[j], or row j when `order` is empty.
void PackStored(BlockType type, int64_t K, int64_t N, const std::byte* rows,
                std::span<const int64_t> order, std::byte* packed);
// Columns [first, first + count) of a B that waits to be packed, as one of their own in memory of
// this thread, until it calls again. `first` is a multiple of kPanelColumns.
PackedB PackColumns(const PackedB& b, int64_t first, int64_t count);
// Packs the panels [begin, end) of a B that waits into `packed`, which has room for all of them.
void PackPanels(const PackedB& b, int64_t begin, int64_t end, std::byte* packed);
// Packs b(k, j) = b[k·b_row + j·b_col], rounded as EncodeBlocks does.
void PackFloats(BlockType type, int64_t K, int64_t N, const float* b, int64_t b_row, int64_t b_col,
                std::byte* packed);

// column [K] = b(·, j).
void UnpackColumn(const PackedB& b, int64_t j, float* column);

}  // namespace heed
