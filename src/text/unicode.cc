#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "text/utf8.h"

namespace heed {
namespace {

constexpr char32_t kPlane = 0x10000;

// The property White_Space of the Unicode Character Database (PropList.txt).
bool IsSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

CharClass LookUp(char32_t code) {
  if (IsSpace(code)) return CharClass::kSpace;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) {
    return CharClass::kLetter;
  }
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) {
    return CharClass::kNumber;
  }
  return CharClass::kOther;
}

// The first plane, where nearly all text lies: 64 KiB.
std::vector<CharClass> FirstPlane() {
  std::vector<CharClass> classes(kPlane);
  for (char32_t code = 0; code < kPlane; ++code) classes[code] = LookUp(code);
  return classes;
}

}  // namespace

CharClass ClassOf(char32_t code) {
  static const std::vector<CharClass> plane = FirstPlane();
  return code < kPlane ? plane[code] : LookUp(code);
}

ClassedChar CharBeyondAscii(std::string_view text, size_t at) {
  // Nearly every character has two or three bytes, of which no lead but 0xE0 and 0xED narrows the
  // next.
  if (text.size() - at >= 3) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
    const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
    const uint8_t first = byte(0);
    if (first >= 0xC2 && first < 0xE0 && continues(1)) {
      return {ClassOf((first & 0x1Fu) << 6 | (byte(1) & 0x3Fu)), 2};
    }
    if (first > 0xE0 && first < 0xF0 && first != 0xED && continues(1) && continues(2)) {
      return {ClassOf((first & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu)), 3};
    }
  }
  const Utf8Step step = NextUtf8(text.substr(at, 4));
  if (step.kind != Utf8Kind::kCharacter) return {};
  return {ClassOf(step.code), step.length};
}

std::string NormalFormC(std::string_view text) {
  utf8proc_uint8_t* normal = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &normal, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, &std::free);
  if (size < 0) return std::string(text);
  return {reinterpret_cast<const char*>(normal), static_cast<size_t>(size)};
}

}  // namespace heed
