#include "tensor/packed.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "tensor/convert.h"

namespace heed {
namespace {

constexpr uint32_t kMiddle = 0x80808080;  // what makes bytes of -128 .. 127 bytes of 0 .. 255

PackedB Layout(BlockType type, int64_t K, int64_t N, const std::byte* packed) {
  return {type, K, N, packed};
}

uint32_t Word(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// rows[c] [K] is column c of the panel in its stored form, or null for zeros. A column's words are
// read side by side, some lines of the panel at a time, so that both stay in the first cache.
void PackPanel(const PackedB& b, int64_t panel, const std::byte* const* rows) {
  auto* words = const_cast<uint32_t*>(b.Panel(panel));
  auto* scales = const_cast<uint16_t*>(b.Scales(panel));
  const int64_t bytes = SizeOf(b.type).bytes;
  const int64_t run = b.scaled() ? (bytes - 2) / 4 : 16;  // words
  const uint32_t flip = b.type == BlockType::kQ8_0 ? kMiddle : 0;
  for (int64_t first = 0; first < b.words(); first += run) {
    const int64_t count = std::min(run, b.words() - first), block = first / run;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      uint32_t* to = words + first * kPanelColumns + c;
      const std::byte* from = rows[c];
      if (from == nullptr) {
        // Any number is 0 with a scale of 0, and bfloat16's is.
        for (int64_t w = 0; w < count; ++w) to[w * kPanelColumns] = flip;
        if (b.scaled()) scales[block * kPanelColumns + c] = 0;
        continue;
      }
      if (b.scaled()) {
        from += block * bytes;
        std::memcpy(scales + block * kPanelColumns + c, from, sizeof(uint16_t));
        from += sizeof(uint16_t);
      } else {
        from += first * 4;
      }
      const bool half = !b.scaled() && b.K % 2 == 1 && first + count == b.words();
      for (int64_t w = 0; w < count - half; ++w) to[w * kPanelColumns] = Word(from + 4 * w) ^ flip;
      if (!half) continue;
      uint16_t last;
      std::memcpy(&last, from + 4 * (count - 1), sizeof(last));
      to[(count - 1) * kPanelColumns] = last;
    }
  }
}

}  // namespace

bool CanPack(BlockType type, int64_t K) {
  return type == BlockType::kBF16 ||
         ((type == BlockType::kQ8_0 || type == BlockType::kQ4_0) && K % kBlockNumbers == 0);
}

int64_t PackedBytes(BlockType type, int64_t K, int64_t N) {
  const PackedB b = Layout(type, K, N, nullptr);
  const int64_t scales = b.scaled() ? K / kBlockNumbers * 2 : 0;
  return b.panels() * kPanelColumns * (b.words() * 4 + scales);
}

void PackStored(BlockType type, int64_t K, int64_t N, const std::byte* rows,
                std::span<const int64_t> order, std::byte* packed) {
  HEED_DCHECK(CanPack(type, K));
  const PackedB b = Layout(type, K, N, packed);
  const BlockSize size = SizeOf(type);
  const int64_t row_bytes = K / size.elements * size.bytes;
  ParallelFor(b.panels(), [&](int64_t panel) {
    const std::byte* columns[kPanelColumns];
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const int64_t j = panel * kPanelColumns + c;
      columns[c] = j < N ? rows + (order.empty() ? j : order[j]) * row_bytes : nullptr;
    }
    PackPanel(b, panel, columns);
  });
}

void PackFloats(BlockType type, int64_t K, int64_t N, const float* from, int64_t b_row,
                int64_t b_col, std::byte* packed) {
  HEED_DCHECK(CanPack(type, K));
  const PackedB b = Layout(type, K, N, packed);
  const BlockSize size = SizeOf(type);
  const int64_t row_bytes = K / size.elements * size.bytes;
  ParallelFor(b.panels(), [&](int64_t panel) {
    std::vector<float> columns(static_cast<size_t>(kPanelColumns * K));
    std::vector<std::byte> stored(static_cast<size_t>(kPanelColumns * row_bytes));
    const std::byte* rows[kPanelColumns] = {};
    const int64_t j = panel * kPanelColumns, count = std::min(kPanelColumns, N - j);
    for (int64_t k = 0; b_col == 1 && k < K; ++k) {
      for (int64_t c = 0; c < count; ++c) columns[c * K + k] = from[k * b_row + j + c];
    }
    for (int64_t c = 0; c < count; ++c) {
      const float* column = &columns[c * K];
      if (b_row == 1) column = from + (j + c) * b_col;
      EncodeBlocks(type, column, K, &stored[c * row_bytes]);
      rows[c] = &stored[c * row_bytes];
    }
    PackPanel(b, panel, rows);
  });
}

void UnpackColumn(const PackedB& b, int64_t j, float* column) {
  const int64_t c = j % kPanelColumns;
  const uint32_t* words = b.Panel(j / kPanelColumns) + c;
  if (!b.scaled()) {
    for (int64_t k = 0; k < b.K; ++k) {
      const uint32_t word = words[k / 2 * kPanelColumns];
      column[k] = Bf16ToFloat(static_cast<uint16_t>(k % 2 == 0 ? word : word >> 16));
    }
    return;
  }
  const uint16_t* scales = b.Scales(j / kPanelColumns) + c;
  const bool bytes = b.type == BlockType::kQ8_0;
  for (int64_t k = 0; k < b.K; ++k) {
    const int64_t block = k / kBlockNumbers, in_block = k % kBlockNumbers;
    const int64_t in_half = bytes ? in_block : in_block % 16;
    const uint32_t word = words[(block * (bytes ? 8 : 4) + in_half / 4) * kPanelColumns];
    const uint32_t byte = word >> in_half % 4 * 8 & 0xff;
    const int q = bytes ? static_cast<int>(byte) - 128
                        : static_cast<int>(in_block < 16 ? byte & 15 : byte >> 4) - 8;
    column[k] = F16ToFloat(scales[block * kPanelColumns]) * static_cast<float>(q);
  }
}

}  // namespace heed
