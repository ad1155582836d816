// The classes of characters that vocabularies cut text by, as Unicode 15 has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heed {

enum class CharClass : uint8_t {
  kOther,   // marks, punctuation, symbols, controls
  kLetter,  // \p{L}
  kNumber,  // \p{N}
  kSpace,   // White_Space: \s
};

CharClass ClassOf(char32_t code);

inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (char c = 'a'; c <= 'z'; ++c) classes[c] = classes[c - 'a' + 'A'] = CharClass::kLetter;
  for (char c = '0'; c <= '9'; ++c) classes[c] = CharClass::kNumber;
  for (char c = 0x09; c <= 0x0D; ++c) classes[c] = CharClass::kSpace;
  classes[' '] = CharClass::kSpace;
  return classes;
}();

// The character that begins at text[at]. A byte that begins none is kOther, one byte long.
struct ClassedChar {
  CharClass kind = CharClass::kOther;
  int length = 1;
};
ClassedChar CharBeyondAscii(std::string_view text, size_t at);
inline ClassedChar CharAt(std::string_view text, size_t at) {
  const uint8_t first = static_cast<uint8_t>(text[at]);
  if (first < 128) return {kAsciiClasses[first], 1};
  return CharBeyondAscii(text, at);
}

// `text` in normal form C; as it is when it is not UTF-8.
std::string NormalFormC(std::string_view text);

}  // namespace heed
