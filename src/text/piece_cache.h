// The ids of pieces met before. Most pieces of a text are few words again and again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "text/bytes_hash.h"

namespace heed {

// Forgets whenever it likes: a piece evicts the one that stood in its place.
class PieceCache {
 public:
  PieceCache() : short_(kShortSlots), long_(kLongSlots) {}

  static constexpr size_t kRoom = 7;

  // Writes the ids of `piece`, at least one byte, to `out` and returns their number; -1 when they
  // are not known. `out` has room for piece.size() ids, and for kRoom of them.
  int64_t Find(std::string_view piece, int32_t* out) const {
    return piece.size() <= kShortBytes ? FindShort(piece, out) : FindLong(piece, out);
  }
  void Keep(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() <= kShortBytes && ids.size() <= kShortIds) return KeepShort(piece, ids);
    if (piece.size() > kShortBytes && piece.size() <= kLongBytes) KeepLong(piece, ids);
  }

 private:
  static constexpr size_t kShortIds = kRoom, kShortSlots = size_t{1} << 16;
  static constexpr size_t kLongBytes = 1024, kLongSlots = size_t{1} << 15;
  static constexpr size_t kMostLongIds = size_t{1} << 20;  // 4 MiB, then all are forgotten

  // Entries whose bytes are all 0 are free.
  struct ShortEntry {
    ShortKey key;
    uint8_t length, count;  // bytes, ids
    int32_t ids[kShortIds];
  };
  struct LongEntry {
    uint64_t hash;
    uint32_t begin;  // in words_: the ids, then the bytes
    uint16_t length, count;
  };
  // Megabytes, of which a short text touches a few pages.
  template <class Entry>
  class Table {
   public:
    explicit Table(size_t slots) : memory_(slots * sizeof(Entry)) {
      if (memory_.data() == nullptr) throw std::bad_alloc();
    }
    const Entry& operator[](size_t at) const {
      return reinterpret_cast<const Entry*>(memory_.data())[at];
    }
    Entry& operator[](size_t at) { return reinterpret_cast<Entry*>(memory_.data())[at]; }

   private:
    Buffer memory_;
  };

  static size_t ShortSlot(const ShortKey& key, size_t length) {
    return HashKey(key, length) % kShortSlots;
  }

  int64_t FindShort(std::string_view piece, int32_t* out) const {
    const ShortKey key = ShortKeyOf(piece);
    const ShortEntry& entry = short_[ShortSlot(key, piece.size())];
    if (entry.length != piece.size() || entry.key != key) return -1;
    std::memcpy(out, entry.ids, sizeof(entry.ids));
    return entry.count;
  }
  void KeepShort(std::string_view piece, std::span<const int32_t> ids) {
    const ShortKey key = ShortKeyOf(piece);
    ShortEntry& entry = short_[ShortSlot(key, piece.size())];
    entry.key = key;
    entry.length = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids);
  }
  int64_t FindLong(std::string_view piece, int32_t* out) const {
    if (piece.size() > kLongBytes) return -1;
    const uint64_t hash = HashBytes(piece);
    const LongEntry& entry = long_[hash % kLongSlots];
    if (entry.hash != hash || entry.length != piece.size()) return -1;
    const int32_t* ids = words_.data() + entry.begin;
    if (std::memcmp(ids + entry.count, piece.data(), piece.size()) != 0) return -1;
    std::memcpy(out, ids, entry.count * sizeof(int32_t));
    return entry.count;
  }
  void KeepLong(std::string_view piece, std::span<const int32_t> ids) {
    const size_t words = ids.size() + (piece.size() + 3) / 4;
    if (words_.size() + words > kMostLongIds) {
      words_.clear();
      long_ = Table<LongEntry>(kLongSlots);
    }
    const uint64_t hash = HashBytes(piece);
    long_[hash % kLongSlots] = {hash, static_cast<uint32_t>(words_.size()),
                                static_cast<uint16_t>(piece.size()),
                                static_cast<uint16_t>(ids.size())};
    words_.insert(words_.end(), ids.begin(), ids.end());
    words_.resize(words_.size() + words - ids.size());
    std::memcpy(words_.data() + words_.size() - (words - ids.size()), piece.data(), piece.size());
  }

  Table<ShortEntry> short_;
  Table<LongEntry> long_;
  std::vector<int32_t> words_;
};

}  // namespace heed
