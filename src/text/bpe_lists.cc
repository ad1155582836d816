#include "text/bpe_lists.h"

#include <algorithm>
#include <cstddef>

#include "text/utf8.h"

namespace heed {
namespace {

using Vocab = std::vector<std::pair<std::string, uint64_t>>;
using Merges = std::vector<std::pair<std::string, std::string>>;

// Walks over JSON; every function moves behind what it reads, and is false where that is not there.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

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

  bool String(std::string* out) {
    out->clear();
    if (!Take('"')) return false;
    bool ascii = true;
    for (size_t begin = at_;; ++at_) {
      if (at_ == text_.size()) return false;
      const auto c = static_cast<uint8_t>(text_[at_]);
      if (c != '"' && c != '\\' && c >= 0x20) {
        ascii &= c < 0x80;
        continue;
      }
      if (c < 0x20) return false;
      out->append(text_, begin, at_ - begin);
      if (c == '"') break;
      if (!Escape(out)) return false;
      begin = at_ + 1;
    }
    ++at_;
    return ascii || FirstBadUtf8(*out) == std::string_view::npos;
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
        std::string skipped;
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
    std::string key;
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
  void SkipSpaces() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
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
  size_t at_ = 0;
};

bool ScanVocab(Scanner* scanner, Vocab* vocab) {
  vocab->reserve(scanner->Room());
  return scanner->Object([&](std::string& token) {
    uint64_t id = 0;
    if (!scanner->Id(&id)) return false;
    vocab->emplace_back(std::move(token), id);
    return true;
  });
}

bool ScanMerges(Scanner* scanner, Merges* merges) {
  std::string text;
  merges->reserve(scanner->Room());
  return scanner->List([&] {
    std::pair<std::string, std::string>& merge = merges->emplace_back();
    if (scanner->Next('"')) return scanner->String(&text) && SplitMerge(text, &merge);
    return scanner->Take('[') && scanner->String(&merge.first) && scanner->Take(',') &&
           scanner->String(&merge.second) && scanner->Take(']') && !merge.first.empty() &&
           !merge.second.empty();
  });
}

}  // namespace

bool SplitMerge(std::string_view text, std::pair<std::string, std::string>* merge) {
  const size_t space = text.find(' ');
  if (space == 0 || space >= text.size() - 1) return false;
  *merge = {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  return true;
}

bool ReadVocab(std::string_view text, Vocab* vocab) {
  Scanner scanner(text);
  return ScanVocab(&scanner, vocab) && scanner.AtEnd();
}

bool CutOutLists(std::string_view text, BpeLists* lists, std::string* rest) {
  Scanner scanner(text);
  size_t kept = 0;  // bytes of the text that are in the rest, or cut out of it
  const auto cut = [&](size_t from, const char* empty) {
    rest->append(text, kept, from - kept).append(empty);
    kept = scanner.at();
  };
  const auto model = [&](const std::string& key) {
    const size_t from = scanner.at();
    if (key == "vocab" && lists->vocab.empty()) {
      if (!ScanVocab(&scanner, &lists->vocab)) return false;
      cut(from, "{}");
      return true;
    }
    if (key == "merges" && lists->merges.empty()) {
      if (!ScanMerges(&scanner, &lists->merges)) return false;
      cut(from, "[]");
      return true;
    }
    return scanner.SkipValue();
  };
  const bool walked = scanner.Object([&](const std::string& key) {
    return key == "model" ? scanner.Object(model) : scanner.SkipValue();
  });
  rest->append(text, kept);
  return walked && !lists->vocab.empty() && !lists->merges.empty();
}

}  // namespace heed
