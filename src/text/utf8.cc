#include "text/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace heed {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// The lead byte says how many bytes follow and narrows the first of them (table 3-7).
struct Lead {
  int length;
  uint8_t low, high;  // bounds of the second byte
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1, 0};
  if (lead.length == 1) return {Utf8Kind::kCharacter, 1, first};
  char32_t code = first & (0xFFu >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (i == static_cast<int>(bytes.size())) return {Utf8Kind::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    code = code << 6 | (byte & 0x3F);
  }
  return {Utf8Kind::kCharacter, lead.length, code};
}

size_t FirstBadUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if ((text[at] & 0x80) == 0) {
      ++at;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(at, 4));
    if (step.kind != Utf8Kind::kCharacter) return at;
    at += step.length;
  }
  return std::string_view::npos;
}

size_t CharacterStart(std::string_view text, size_t from) {
  while (from < text.size() && (text[from] & 0xC0) == 0x80) ++from;
  return std::min(from, text.size());
}

tl::unexpected<Error> BadUtf8(const std::string& name, uint64_t offset, char byte) {
  return Fail(ErrorKind::kFormat, name,
              fmt::format("byte 0x{:02X} at offset {}", static_cast<uint8_t>(byte), offset),
              "UTF-8 text", "convert the text to UTF-8, or use the byte vocabulary");
}

void AppendUtf8(char32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string CharacterName(char32_t code) {
  std::string name = fmt::format("U+{:04X}", static_cast<uint32_t>(code));
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool invisible = code == ' ' || code == 0xA0 || code == 0xFEFF ||
                         (code >= 0x2000 && code <= 0x200F) || (code >= 0x2028 && code <= 0x202F);
  if (control || invisible) return name;
  name += " '";
  AppendUtf8(code, &name);
  return name + "'";
}

std::string Utf8Splitter::Push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at, 4);
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    if (step.kind == Utf8Kind::kCharacter) {
      out += rest.substr(0, step.length);
    } else {
      AppendUtf8(kReplacement, &out);
    }
    at += step.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Splitter::Flush() {
  std::string out;
  if (!pending_.empty()) AppendUtf8(kReplacement, &out);
  pending_.clear();
  return out;
}

}  // namespace heed
