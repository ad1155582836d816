// How work is cut into pieces: by its size alone, so that no bit depends on the thread count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/buffer.h"

namespace heed::simd {

// Numbers per piece: some microseconds of work, so that waking the team is worth it.
inline constexpr int64_t kGrain = 16384;

// `total` things in `pieces` runs of `size`, the last one shorter.
struct Split {
  int64_t total = 0, size = 1, pieces = 0;

  int64_t begin(int64_t piece) const { return piece * size; }
  int64_t end(int64_t piece) const { return std::min(total, (piece + 1) * size); }
  int64_t length(int64_t piece) const { return end(piece) - begin(piece); }
};

// Runs of `size` things.
inline Split SplitBy(int64_t total, int64_t size) {
  return {total, size, (total + size - 1) / size};
}

// As few runs of at most `size` things as there can be, of nearly equal lengths that are multiples
// of `unit`, a divisor of size.
inline Split SplitEvenly(int64_t total, int64_t size, int64_t unit = 1) {
  const int64_t pieces = std::max<int64_t>(1, (total + size - 1) / size);
  return SplitBy(total, std::max<int64_t>(1, (total + pieces * unit - 1) / (pieces * unit)) * unit);
}

// Runs of n numbers; all but the last are whole cache lines.
inline Split SplitNumbers(int64_t n) { return SplitEvenly(n, kGrain, 16); }

// Runs of whole rows of C numbers, at most `most` runs.
inline Split SplitRows(int64_t rows, int64_t C,
                       int64_t most = std::numeric_limits<int64_t>::max()) {
  const int64_t by_grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, C));
  return SplitEvenly(rows, std::max(by_grain, rows / most + (rows % most != 0)));
}

// Runs of a reduction over rows that each keep partial sums.
inline constexpr int64_t kMostPartials = 64;

// The calling thread's scratch of at least `bytes`, valid until its next call here. It only grows.
inline std::byte* Scratch(size_t bytes) {
  thread_local Buffer buffer;
  if (buffer.size() < bytes) buffer = Buffer(bytes);
  return buffer.data();
}

}  // namespace heed::simd
