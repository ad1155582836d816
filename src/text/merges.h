// Byte-pair encoding: neighbours merge, the best-ranked pair first, until none is left.
// Source: R. Sennrich et al., "Neural machine translation of rare words with subword units", 2016.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heed {

// The tokens `left` and `right` side by side become `result`.
struct BpeMerge {
  int32_t left = 0, right = 0, result = 0;
  uint32_t rank = 0;  // lower merges first; among equals the leftmost in the text
};

// The merges by their pair, in an open hash table.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  struct Found {
    uint32_t rank = kNoRank;  // kNoRank: the pair does not merge
    int32_t result = -1;
  };

  MergeTable() : MergeTable(std::span<const BpeMerge>()) {}
  // Ids are from 0, ranks below kNoRank; of equal pairs the first counts, and `again` (may be null)
  // is set to one of the others.
  explicit MergeTable(std::span<const BpeMerge> merges, const BpeMerge** again = nullptr);

  Found Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right), hash = Hash(key);
    // Most pairs do not merge, and the filter, unlike the table, stays in a core's own cache.
    const uint64_t bit = hash >> kFilterShift;
    if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return {};
    for (size_t at = hash >> shift_;; at = (at + 1) & mask_) {
      const Entry& entry = entries_[at];
      if (entry.key == key) return entry.found;
      if (entry.key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Entry {
    uint64_t key = kFree;
    Found found;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Fibonacci hashing: the high bits of the product count.
  static uint64_t Hash(uint64_t key) { return (key ^ key >> 29) * 0x9E3779B97F4A7C15; }

  static constexpr int kFilterShift = 64 - 20;  // 2^20 bits: 128 KiB
  std::vector<uint64_t> filter_;
  std::vector<Entry> entries_;  // a power of two, at most half full
  size_t mask_ = 0;
  int shift_ = 63;
};

// Room that Merge works in, kept from call to call.
struct MergeScratch {
  struct Link {
    int32_t previous, next;  // indices; -1 at the ends
    uint32_t rank;           // of the pair with `next`, to tell stale candidates
    int32_t result;
  };
  std::vector<Link> links;
  std::vector<std::pair<uint32_t, int32_t>> heap;  // (rank, index of the left symbol)
  std::vector<uint32_t> ranks;
  std::vector<int32_t> results;
};

// Merges `symbols` in place until no pair is left. Time n·log n for n symbols.
void Merge(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch);

}  // namespace heed
