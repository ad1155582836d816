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

// rows[c] [K] is column c of the panel in its stored form, or null for zeros.
void PackPanel(const PackedB& b, int64_t panel, const std::byte* const* rows) {
  auto* words = const_cast<uint32_t*>(b.Panel(panel));
  auto* scales = const_cast<uint16_t*>(b.Scales(panel));
  const BlockSize size = SizeOf(b.type);
  const int64_t block_words = b.scaled() ? (size.bytes - 2) / 4 : b.words();
  const uint32_t flip = b.type == BlockType::kQ8_0 ? kMiddle : 0;
  // The zero of q4_0 is 8, and that of q8_0 the middle; with a scale of 0 any number is 0.
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    if (rows[c] != nullptr) continue;
    for (int64_t w = 0; w < b.words(); ++w) words[w * kPanelColumns + c] = flip;
    for (int64_t k = 0; b.scaled() && k < b.K / kBlockNumbers; ++k) {
      scales[k * kPanelColumns + c] = 0;
    }
  }
  if (!b.scaled()) {
    const int64_t whole = b.K / 2;
    for (int64_t w = 0; w < whole; ++w, words += kPanelColumns) {
      for (int64_t c = 0; c < kPanelColumns; ++c) {
        if (rows[c] != nullptr) words[c] = Word(rows[c] + 4 * w);
      }
    }
    for (int64_t c = 0; whole < b.words() && c < kPanelColumns; ++c) {
      uint16_t last = 0;
      if (rows[c] != nullptr) std::memcpy(&last, rows[c] + 4 * whole, sizeof(last));
      words[c] = last;
    }
    return;
  }
  for (int64_t k = 0; k < b.K / kBlockNumbers; ++k, scales += kPanelColumns) {
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      if (rows[c] == nullptr) continue;
      std::memcpy(scales + c, rows[c] + k * size.bytes, sizeof(uint16_t));
    }
    for (int64_t w = 0; w < block_words; ++w, words += kPanelColumns) {
      for (int64_t c = 0; c < kPanelColumns; ++c) {
        if (rows[c] != nullptr) words[c] = Word(rows[c] + k * size.bytes + 2 + 4 * w) ^ flip;
      }
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
