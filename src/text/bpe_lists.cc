#include "text/bpe_lists.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "text/bytes_hash.h"
#include "text/utf8.h"

namespace heed {
namespace {

// Walks over JSON; every function moves behind what it reads, and is false where that is not there.
class Scanner {
 public:
  // Strings with escapes go into `unescaped`.
  Scanner(std::string_view text, std::deque<std::string>* unescaped)
      : text_(text), unescaped_(unescaped) {}

  size_t at() const { return at_; }
  // About as many members or elements as the rest of the text can have.
  size_t Room() const { return (text_.size() - at_) / 24; }
  bool AtEnd() {
    SkipSpaces();
    return at_ == text_.size();
  }
  bool Next(char c) {
    SkipSpaces();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool Take(char c) {
    if (!Next(c)) return false;
    ++at_;
    return true;
  }

  bool String(std::string_view* out) {
    return Bytes(out) && FirstBadUtf8(*out) == std::string_view::npos;
  }

  // A string that need not be UTF-8.
  bool Bytes(std::string_view* out) {
    if (!Take('"')) return false;
    const size_t begin = at_;
    uint64_t stop = 0;
    while (stop == 0 && text_.size() - at_ >= 8) {
      stop = Stops(LoadWord<uint64_t>(&text_[at_]));
      at_ += static_cast<size_t>(std::countr_zero(stop)) / 8;
    }
    if (stop == 0) return Unescape(begin, out);
    if (text_[at_] != '"') return Unescape(begin, out);
    *out = text_.substr(begin, at_++ - begin);
    return true;
  }

  // A whole number without sign, of at most nine digits.
  bool Id(uint64_t* out) {
    SkipSpaces();
    const size_t begin = at_;
    *out = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      *out = *out * 10 + static_cast<uint64_t>(text_[at_] - '0');
    }
    const size_t digits = at_ - begin;
    return digits > 0 && digits <= 9 && (digits == 1 || text_[begin] != '0');
  }

  // Any value, as far as brackets and quotes tell where it ends.
  bool SkipValue() {
    SkipSpaces();
    for (int depth = 0; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        std::string_view skipped;
        if (!String(&skipped)) return false;
        --at_;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if ((c == ']' || c == '}' || c == ',') && depth == 0) {
        return true;
      } else if (c == ']' || c == '}') {
        --depth;
      }
    }
    return false;
  }

  // The members of an object; `member` reads the value of a key.
  template <class Member>
  bool Object(const Member& member) {
    if (!Take('{')) return false;
    if (Take('}')) return true;
    std::string_view key;
    do {
      if (!String(&key) || !Take(':') || !member(key)) return false;
    } while (Take(','));
    return Take('}');
  }

  template <class Element>
  bool List(const Element& element) {
    if (!Take('[')) return false;
    if (Take(']')) return true;
    do {
      if (!element()) return false;
    } while (Take(','));
    return Take(']');
  }

 private:
  static constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;

  // The high bits of the bytes of a word that end the plain part of a string: quotes, backslashes
  // and controls. The lowest is right; above it a borrow may have set others.
  static uint64_t Stops(uint64_t word) {
    const auto below = [](uint64_t bytes, uint64_t n) { return (bytes - kOnes * n) & ~bytes; };
    return (below(word ^ kOnes * '"', 1) | below(word ^ kOnes * '\\', 1) | below(word, 0x20)) &
           kHigh;
  }

  void SkipSpaces() {
    // Files for people are indented.
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    uint64_t other = 0;
    while (other == 0 && text_.size() - at_ >= 8) {
      other = LoadWord<uint64_t>(&text_[at_]) ^ kOnes * ' ';
      at_ += static_cast<size_t>(std::countr_zero(other)) / 8;
    }
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  // The string from `begin` on, of which all up to at_ is plain.
  bool Unescape(size_t begin, std::string_view* out) {
    std::string& text = unescaped_->emplace_back();
    for (;; ++at_) {
      if (at_ == text_.size()) return false;
      const auto c = static_cast<uint8_t>(text_[at_]);
      if (c != '"' && c != '\\' && c >= 0x20) continue;
      if (c < 0x20) return false;
      text.append(text_, begin, at_ - begin);
      if (c == '"') break;
      if (!Escape(&text)) return false;
      begin = at_ + 1;
    }
    ++at_;
    *out = text;
    return true;
  }

  // The escape whose backslash stands at at_, which ends on its last character.
  bool Escape(std::string* out) {
    if (++at_ == text_.size()) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
    if (const size_t name = kNames.find(text_[at_]); name != std::string_view::npos) {
      out->push_back(kBytes[name]);
      return true;
    }
    char32_t code = 0;
    if (text_[at_] != 'u' || !Hex(&code)) return false;
    if (code >= 0xD800 && code < 0xE000) {
      char32_t low = 0;
      const bool pair = code < 0xDC00 && text_.substr(at_ + 1).starts_with("\\u");
      at_ += 2;
      if (!pair || !Hex(&low) || low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
    }
    AppendUtf8(code, out);
    return code != 0;
  }

  // Four hexadecimal digits behind the u at at_.
  bool Hex(char32_t* code) {
    for (int i = 0; i < 4; ++i) {
      if (++at_ >= text_.size()) return false;
      const char c = text_[at_], lower = static_cast<char>(c | 0x20);
      const bool digit = c >= '0' && c <= '9';
      if (!digit && !(lower >= 'a' && lower <= 'f')) return false;
      *code = *code << 4 | static_cast<char32_t>(digit ? c - '0' : lower - 'a' + 10);
    }
    return true;
  }

  std::string_view text_;
  std::deque<std::string>* unescaped_;
  size_t at_ = 0;
};

bool ScanVocab(Scanner* scanner, BpeLists* lists) {
  lists->vocab.reserve(scanner->Room());
  return scanner->Object([&](std::string_view token) {
    uint64_t id = 0;
    if (!scanner->Id(&id)) return false;
    lists->vocab.emplace_back(token, id);
    return true;
  });
}

bool ScanMerges(Scanner* scanner, BpeLists* lists) {
  std::string_view text;
  lists->merges.reserve(scanner->Room());
  return scanner->List([&] {
    std::pair<std::string_view, std::string_view>& merge = lists->merges.emplace_back();
    // What is no UTF-8 is no token either.
    if (scanner->Next('"')) return scanner->Bytes(&text) && SplitMerge(text, &merge);
    return scanner->Take('[') && scanner->Bytes(&merge.first) && scanner->Take(',') &&
           scanner->Bytes(&merge.second) && scanner->Take(']') && !merge.first.empty() &&
           !merge.second.empty();
  });
}

}  // namespace

bool SplitMerge(std::string_view text, std::pair<std::string_view, std::string_view>* merge) {
  const size_t space = text.find(' ');
  if (space == 0 || space >= text.size() - 1) return false;
  *merge = {text.substr(0, space), text.substr(space + 1)};
  return true;
}

bool ReadVocab(std::string_view text, BpeLists* lists) {
  Scanner scanner(text, &lists->unescaped);
  return ScanVocab(&scanner, lists) && scanner.AtEnd();
}

bool CutOutLists(std::string_view text, BpeLists* lists, std::string* rest) {
  Scanner scanner(text, &lists->unescaped);
  size_t kept = 0;  // bytes of the text that are in the rest, or cut out of it
  const auto cut = [&](size_t from, const char* empty) {
    rest->append(text, kept, from - kept).append(empty);
    kept = scanner.at();
  };
  const auto model = [&](std::string_view key) {
    const size_t from = scanner.at();
    if (key == "vocab" && lists->vocab.empty()) {
      if (!ScanVocab(&scanner, lists)) return false;
      cut(from, "{}");
      return true;
    }
    if (key == "merges" && lists->merges.empty()) {
      if (!ScanMerges(&scanner, lists)) return false;
      cut(from, "[]");
      return true;
    }
    return scanner.SkipValue();
  };
  const bool walked = scanner.Object([&](std::string_view key) {
    return key == "model" ? scanner.Object(model) : scanner.SkipValue();
  });
  rest->append(text, kept);
  return walked && !lists->vocab.empty() && !lists->merges.empty();
}

}  // namespace heed
