#include "tensor/packed.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "tensor/convert.h"

namespace heed {
namespace {

constexpr int64_t kLine = 64;             // bytes of the cache's
constexpr uint32_t kMiddle = 0x80808080;  // what makes bytes of -128 .. 127 bytes of 0 .. 255

PackedB Layout(BlockType type, int64_t K, int64_t N, const std::byte* packed) {
  return {type, K, N, packed};
}

uint32_t Word(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

int64_t RowBytes(BlockType type, int64_t K) {
  const BlockSize size = SizeOf(type);
  return K / size.elements * size.bytes;
}

using FourWords = uint32_t __attribute__((vector_size(16)));

FourWords Load4(const std::byte* at) {
  FourWords words;
  std::memcpy(&words, at, sizeof(words));
  return words;
}

// Four words of four columns, `at` bytes from their starts: to[w][c] = word w of column c, flipped.
void Transpose4(const std::byte* const* columns, int64_t at, uint32_t flip, uint32_t* to) {
  const FourWords a = Load4(columns[0] + at), b = Load4(columns[1] + at);
  const FourWords c = Load4(columns[2] + at), d = Load4(columns[3] + at);
  const FourWords low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const FourWords high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const FourWords low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const FourWords high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const FourWords lines[] = {__builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5),
                             __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7),
                             __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5),
                             __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7)};
  for (int w = 0; w < 4; ++w) {
    const FourWords line = lines[w] ^ flip;
    std::memcpy(to + w * kPanelColumns, &line, sizeof(line));
  }
}

// rows[c] [K] is column c of the panel in its stored form. Columns are read a cache line at a time:
// sixteen of them may lie a power of two apart.
void PackPanel(const PackedB& b, int64_t panel, const std::byte* const* rows) {
  auto* words = const_cast<uint32_t*>(b.Panel(panel));
  auto* scales = const_cast<uint16_t*>(b.Scales(panel));
  const int64_t bytes = SizeOf(b.type).bytes;
  const int64_t run = b.scaled() ? (bytes - 2) / 4 : 16;  // words
  const int64_t whole = b.scaled() ? b.words() : b.K / 2;
  const uint32_t flip = b.type == BlockType::kQ8_0 ? kMiddle : 0;
  // Where the rows of the next panel are, but for another order: sixteen rows at once are no
  // sequence that the processor would guess.
  const std::byte* ahead = rows[0] + kPanelColumns * RowBytes(b.type, b.K);
  const int64_t step = kPanelColumns * (b.scaled() ? bytes : 4 * run);
  for (int64_t first = 0; first < whole; first += run, ahead += step) {
    const int64_t count = std::min(run, whole - first), block = first / run;
    for (int64_t at = 0; at < step; at += kLine) __builtin_prefetch(ahead + at, 0, 2);
    for (int64_t c = 0; c < kPanelColumns; c += 4) {
      uint32_t* to = words + first * kPanelColumns + c;
      const std::byte* from[4];
      for (int64_t i = 0; i < 4; ++i) {
        from[i] = rows[c + i] + (b.scaled() ? block * bytes : 4 * first);
        if (!b.scaled()) continue;
        std::memcpy(scales + block * kPanelColumns + c + i, from[i], sizeof(uint16_t));
        from[i] += sizeof(uint16_t);
      }
      int64_t w = 0;
      for (; w + 4 <= count; w += 4) Transpose4(from, 4 * w, flip, to + w * kPanelColumns);
      for (; w < count; ++w) {
        for (int64_t i = 0; i < 4; ++i) to[w * kPanelColumns + i] = Word(from[i] + 4 * w) ^ flip;
      }
    }
  }
  if (whole == b.words()) return;
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    uint16_t last;
    std::memcpy(&last, rows[c] + 4 * whole, sizeof(last));
    words[whole * kPanelColumns + c] = last;
  }
}

void PackStoredPanel(const PackedB& b, int64_t panel, std::byte* packed) {
  HEED_DCHECK(CanPack(b.type, b.K));
  // Any number is 0 with a scale of 0, and bfloat16's is.
  const bool whole = (panel + 1) * kPanelColumns <= b.N;
  const std::vector<std::byte> zeros(static_cast<size_t>(whole ? 0 : RowBytes(b.type, b.K)));
  const std::byte* columns[kPanelColumns];
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    const int64_t j = panel * kPanelColumns + c;
    columns[c] = j < b.N ? b.Row(j) : zeros.data();
  }
  PackPanel(Layout(b.type, b.K, b.N, packed), panel, columns);
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
  const PackedB b{type, K, N, nullptr, rows, order};
  PackPanels(b, 0, b.panels(), packed);
}

void PackPanels(const PackedB& b, int64_t begin, int64_t end, std::byte* packed) {
  ParallelFor(end - begin, [&](int64_t piece) { PackStoredPanel(b, begin + piece, packed); });
}

PackedB PackColumns(const PackedB& b, int64_t first, int64_t count) {
  thread_local std::vector<std::byte> memory;
  size_t room = static_cast<size_t>(PackedBytes(b.type, b.K, count)) + kLine;
  if (memory.size() < room) memory.resize(room);
  void* start = memory.data();
  auto* packed = static_cast<std::byte*>(std::align(kLine, room - kLine, start, room));
  PackStored(b.type, b.K, count, b.order.empty() ? b.Row(first) : b.rows,
             b.order.empty() ? b.order : b.order.subspan(first, count), packed);
  return Layout(b.type, b.K, count, packed);
}

void PackFloats(BlockType type, int64_t K, int64_t N, const float* from, int64_t b_row,
                int64_t b_col, std::byte* packed) {
  HEED_DCHECK(CanPack(type, K));
  const PackedB b = Layout(type, K, N, packed);
  const int64_t row_bytes = RowBytes(type, K);
  ParallelFor(b.panels(), [&](int64_t panel) {
    std::vector<float> columns(static_cast<size_t>(kPanelColumns * K));
    std::vector<std::byte> stored(static_cast<size_t>(kPanelColumns * row_bytes));
    const std::byte* rows[kPanelColumns];
    for (int64_t c = 0; c < kPanelColumns; ++c) rows[c] = &stored[c * row_bytes];
    const int64_t j = panel * kPanelColumns, count = std::min(kPanelColumns, N - j);
    for (int64_t k = 0; b_col == 1 && k < K; ++k) {
      for (int64_t c = 0; c < count; ++c) columns[c * K + k] = from[k * b_row + j + c];
    }
    for (int64_t c = 0; c < count; ++c) {
      const float* column = &columns[c * K];
      if (b_row == 1) column = from + (j + c) * b_col;
      EncodeBlocks(type, column, K, &stored[c * row_bytes]);
    }
    PackPanel(b, panel, rows);
  });
}

void UnpackColumn(const PackedB& b, int64_t j, float* column) {
  if (b.data == nullptr) return DecodeBlocks(b.type, b.Row(j), b.K, column);
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
