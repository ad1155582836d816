// Hashes of short texts, for tables that are asked some hundred thousand times in a millisecond.
// The strongest part is a product of 64 by 64 bits, both halves of which count.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace heed {

// Texts of up to so many bytes are told apart by their ShortKey and their length.
inline constexpr size_t kShortBytes = 16;

// The bytes of a text, then zeros.
struct ShortKey {
  uint64_t low = 0, high = 0;
  bool operator==(const ShortKey&) const = default;
};

template <class Word>
uint64_t LoadWord(const char* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

inline uint64_t MixWords(uint64_t a, uint64_t b) {
  const auto product =
      static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD6E8FEB86659FD93);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Of at most kShortBytes. Words from both ends overlap where there are no whole ones.
inline ShortKey ShortKeyOf(std::string_view text) {
  const char* begin = text.data();
  const size_t n = text.size();
  const auto last = [&]<class Word>(Word) { return LoadWord<Word>(begin + n - sizeof(Word)); };
  if (n > 8) return {LoadWord<uint64_t>(begin), last(uint64_t{}) >> 8 * (16 - n)};
  if (n >= 4) return {LoadWord<uint32_t>(begin) | last(uint32_t{}) << 8 * (n - 4), 0};
  if (n == 0) return {};
  const auto byte = [begin](size_t i) { return uint64_t{static_cast<uint8_t>(begin[i])} << 8 * i; };
  return {byte(0) | byte(n / 2) | byte(n - 1), 0};
}

// The key of two texts side by side, of which the first has n bytes; both have kShortBytes at most.
inline ShortKey Joined(const ShortKey& left, size_t n, const ShortKey& right) {
  if (n == 0) return right;
  if (n >= 8) return {left.low, left.high | (n < 16 ? right.low << 8 * (n - 8) : 0)};
  return {left.low | right.low << 8 * n, right.high << 8 * n | right.low >> 8 * (8 - n)};
}

inline uint64_t HashKey(const ShortKey& key, size_t n) { return MixWords(key.low ^ n, key.high); }

inline uint64_t HashBytes(std::string_view text) {
  if (text.size() <= kShortBytes) return HashKey(ShortKeyOf(text), text.size());
  uint64_t hash = text.size();
  size_t at = 0;
  for (; at + 8 < text.size(); at += 8) hash = MixWords(hash, LoadWord<uint64_t>(&text[at]));
  return MixWords(hash, LoadWord<uint64_t>(&text[text.size() - 8]));
}

}  // namespace heed
