// UTF-8 read strictly: overlong forms, surrogates and numbers above U+10FFFF are refused.
// Source: The Unicode Standard, section 3.9, table 3-7 and "maximal subpart" replacement.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace heed {

enum class Utf8Kind {
  kCharacter,   // `length` bytes are the character `code`
  kInvalid,     // `length` bytes can begin no character; one U+FFFD stands for them
  kIncomplete,  // all `length` bytes there are begin a character whose end is missing
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  int length = 1;  // 1 .. 4
  char32_t code = 0;
};

// The first character of `bytes`, which is not empty.
Utf8Step NextUtf8(std::string_view bytes);

// Byte offset of the first sequence that is not a whole character; npos when there is none.
size_t FirstBadUtf8(std::string_view text);

// The first place at or after `from` that is not inside a character.
size_t CharacterStart(std::string_view text, size_t from);

// The error for the byte at `offset` of what is called `name`.
tl::unexpected<Error> BadUtf8(const std::string& name, uint64_t offset, char byte);

// `code` is a Unicode scalar value.
void AppendUtf8(char32_t code, std::string* out);

// "U+00E9 'é'"; without the picture when the character has none (controls, spaces).
std::string CharacterName(char32_t code);

// Cuts a stream of bytes into whole characters. What comes out does not depend on how the bytes
// arrive, and is always valid UTF-8: bytes that begin no character become U+FFFD.
class Utf8Splitter {
 public:
  // The characters that are whole after `bytes` arrived.
  std::string Push(std::string_view bytes);
  // The stream has ended: U+FFFD for an unfinished character, or nothing.
  std::string Flush();

 private:
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

}  // namespace heed
