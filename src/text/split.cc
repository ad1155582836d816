#include "text/split.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace heed {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100kRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// The end of the run of characters of one class from `at` on.
size_t RunEnd(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const ClassedChar next = CharAt(text, at);
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

// Behind an apostrophe: the length of s, t, m, d, re, ve or ll; 0 when none stands there. Without
// regard to case, U+017F is an s too.
size_t ContractionLength(std::string_view after, bool any_case) {
  const auto letter = [&](size_t i) {
    if (i >= after.size()) return '\0';
    const char c = after[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(0), second = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
  if ((first == 'r' || first == 'v') && second == 'e') return 2;
  if (first == 'l' && second == 'l') return 2;
  return any_case && after.starts_with("\u017F") ? 2 : 0;
}

// White space from `at` on leaves its last character to what follows: \s+(?!\S)|\s+.
size_t SpaceEnd(std::string_view text, size_t at) {
  size_t end = at, last = at;
  while (end < text.size()) {
    const ClassedChar next = CharAt(text, end);
    if (next.kind != CharClass::kSpace) break;
    last = end;
    end += next.length;
  }
  return end == text.size() || last == at ? end : last;
}

size_t Gpt2End(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    const size_t length = ContractionLength(text.substr(at + 1), false);
    if (length > 0) return at + 1 + length;
  }
  const size_t begin = at + (text[at] == ' ');
  if (begin == text.size()) return begin;
  const ClassedChar first = CharAt(text, begin);
  if (first.kind == CharClass::kSpace) return SpaceEnd(text, at);
  return RunEnd(text, begin + first.length, first.kind);
}

// \s*[\r\n]+ where white space from `at` on has a newline, else SpaceEnd.
size_t LinesEnd(std::string_view text, size_t at) {
  size_t end = at, behind_newline = at;
  while (end < text.size()) {
    const ClassedChar next = CharAt(text, end);
    if (next.kind != CharClass::kSpace) break;
    end += next.length;
    if (IsNewline(text[end - 1])) behind_newline = end;
  }
  return behind_newline > at ? behind_newline : SpaceEnd(text, at);
}

size_t DigitsEnd(std::string_view text, size_t at, int most) {
  for (int n = 0; n < most && at < text.size(); ++n) {
    const ClassedChar next = CharAt(text, at);
    if (next.kind != CharClass::kNumber) break;
    at += next.length;
  }
  return at;
}

size_t Cl100kEnd(std::string_view text, size_t at, int most_digits) {
  if (text[at] == '\'') {
    const size_t length = ContractionLength(text.substr(at + 1), true);
    if (length > 0) return at + 1 + length;
  }
  const ClassedChar first = CharAt(text, at);
  if (first.kind == CharClass::kNumber) return DigitsEnd(text, at, most_digits);
  const size_t next = at + first.length;
  if (first.kind == CharClass::kLetter) return RunEnd(text, next, CharClass::kLetter);
  const bool at_end = next == text.size();
  const CharClass second = at_end ? CharClass::kSpace : CharAt(text, next).kind;
  if (second == CharClass::kLetter && !IsNewline(text[at])) {
    return RunEnd(text, next, CharClass::kLetter);
  }
  const bool symbols =
      first.kind == CharClass::kOther || (text[at] == ' ' && second == CharClass::kOther);
  if (!symbols) return LinesEnd(text, at);
  size_t end = RunEnd(text, next, CharClass::kOther);
  while (end < text.size() && IsNewline(text[end])) ++end;
  return end;
}

}  // namespace

size_t PieceEnd(SplitPattern pattern, std::string_view text, size_t at) {
  switch (pattern) {
    case SplitPattern::kNone:
      return text.size();
    case SplitPattern::kGpt2:
      return Gpt2End(text, at);
    case SplitPattern::kCl100k:
      return Cl100kEnd(text, at, 3);
    case SplitPattern::kQwen2:
      return Cl100kEnd(text, at, 1);
  }
  return text.size();
}

bool SplitsAt(std::string_view text, size_t at) {
  if (at == 0 || at >= text.size()) return true;
  const char next = text[at];
  const std::string_view rest = text.substr(at);
  const bool stop =
      static_cast<uint8_t>(next) < 128
          ? CharAt(text, at).kind != CharClass::kLetter
          : rest.starts_with("\u3001") || rest.starts_with("\u3002") || rest.starts_with("\uFF0C");
  if (!stop) return false;
  size_t before = at - 1;
  while (before > 0 && at - before < 4 && (text[before] & 0xC0) == 0x80) --before;
  const ClassedChar last = CharAt(text, before);
  return last.kind == CharClass::kLetter && before + last.length == at;
}

std::string_view RegexOf(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kNone:
      return "";
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kCl100k:
      return kCl100kRegex;
    case SplitPattern::kQwen2:
      return kQwen2Regex;
  }
  return "";
}

std::optional<SplitPattern> PatternOf(std::string_view regex) {
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kCl100k, SplitPattern::kQwen2}) {
    if (regex == RegexOf(pattern)) return pattern;
  }
  return std::nullopt;
}

}  // namespace heed
