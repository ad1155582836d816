// The ids of pieces met before. Most pieces of a text are few words again and again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

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
  static constexpr size_t kShortBytes = 16, kShortIds = kRoom, kShortSlots = size_t{1} << 16;
  static constexpr size_t kLongBytes = 1024, kLongSlots = size_t{1} << 15;
  static constexpr size_t kMostLongIds = size_t{1} << 20;  // 4 MiB, then all are forgotten

  // A short piece is its own key: two words that overlap where it has fewer than 16 bytes.
  struct Key {
    uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };
  struct ShortEntry {
    Key key;
    uint8_t length = 0, count = 0;  // bytes, ids; length 0: free
    int32_t ids[kShortIds];
  };
  struct LongEntry {
    uint64_t hash = 0;
    uint32_t begin = 0;  // in words_: the ids, then the bytes
    uint16_t length = 0, count = 0;
  };

  template <class Word>
  static uint64_t Load(const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof(word));
    return word;
  }
  static Key KeyOf(std::string_view piece) {
    const char* begin = piece.data();
    const size_t n = piece.size();
    if (n >= 8) return {Load<uint64_t>(begin), Load<uint64_t>(begin + n - 8)};
    if (n >= 4) return {Load<uint32_t>(begin), Load<uint32_t>(begin + n - 4)};
    const auto byte = [begin](size_t i) { return uint64_t{static_cast<uint8_t>(begin[i])}; };
    return {byte(0) | byte(n / 2) << 8 | byte(n - 1) << 16, 0};
  }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const auto product =
        static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD6E8FEB86659FD93);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static uint64_t HashOf(std::string_view piece) {
    uint64_t hash = piece.size();
    size_t at = 0;
    for (; at + 8 < piece.size(); at += 8) hash = Mix(hash, Load<uint64_t>(piece.data() + at));
    return Mix(hash, Load<uint64_t>(piece.data() + piece.size() - 8));
  }
  static size_t ShortSlot(const Key& key, size_t length) {
    return Mix(key.low ^ length, key.high) % kShortSlots;
  }

  int64_t FindShort(std::string_view piece, int32_t* out) const {
    const Key key = KeyOf(piece);
    const ShortEntry& entry = short_[ShortSlot(key, piece.size())];
    if (entry.length != piece.size() || entry.key != key) return -1;
    std::memcpy(out, entry.ids, sizeof(entry.ids));
    return entry.count;
  }
  void KeepShort(std::string_view piece, std::span<const int32_t> ids) {
    const Key key = KeyOf(piece);
    ShortEntry& entry = short_[ShortSlot(key, piece.size())];
    entry.key = key;
    entry.length = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids);
  }
  int64_t FindLong(std::string_view piece, int32_t* out) const {
    if (piece.size() > kLongBytes) return -1;
    const uint64_t hash = HashOf(piece);
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
      long_.assign(kLongSlots, {});
    }
    const uint64_t hash = HashOf(piece);
    long_[hash % kLongSlots] = {hash, static_cast<uint32_t>(words_.size()),
                                static_cast<uint16_t>(piece.size()),
                                static_cast<uint16_t>(ids.size())};
    words_.insert(words_.end(), ids.begin(), ids.end());
    words_.resize(words_.size() + words - ids.size());
    std::memcpy(words_.data() + words_.size() - (words - ids.size()), piece.data(), piece.size());
  }

  std::vector<ShortEntry> short_;
  std::vector<LongEntry> long_;
  std::vector<int32_t> words_;
};

}  // namespace heed
