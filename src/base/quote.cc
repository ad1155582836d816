#include "base/quote.h"

#include <fmt/format.h>

#include <algorithm>

namespace heed {

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

std::string ShellWord(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=:,").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view letter = text.substr(0, length);
    // The controls: below the space, DEL, and U+0080 to U+009F.
    const bool control =
        lead < 0x20 || lead == 0x7F || (letter >= "\xC2\x80" && letter < "\xC2\xA0");
    const bool valid = !control && IsUtf8(letter);
    out += valid ? letter : "?";
    text.remove_prefix(valid ? length : 1);
  }
  return out;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length == 0 || lead > 0xf4 || length > text.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      // The second byte of some leads is narrower: overlong forms, surrogates, above U+10FFFF.
      const int low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      const int high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (c < low || c > high) return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace heed
