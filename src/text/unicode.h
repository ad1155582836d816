// The classes of characters that vocabularies cut text by, as Unicode 15 has them.
#pragma once

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

// The character that begins at text[at]. A byte that begins none is kOther, one byte long.
struct ClassedChar {
  CharClass kind = CharClass::kOther;
  int length = 1;
};
ClassedChar CharAt(std::string_view text, size_t at);

// `text` in normal form C; as it is when it is not UTF-8.
std::string NormalFormC(std::string_view text);

}  // namespace heed
