#include "text/char_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/plural.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace heed {

CharTokenizer::CharTokenizer(std::span<const char32_t> characters) {
  const char32_t largest =
      characters.empty() ? 0 : *std::max_element(characters.begin(), characters.end());
  ids_.assign(largest + 1, -1);
  for (const char32_t character : characters) {
    HEED_DCHECK(ids_[character] < 0);
    ids_[character] = static_cast<int32_t>(bytes_.size());
    AppendUtf8(character, &bytes_.emplace_back());
  }
}

Result<std::unique_ptr<CharTokenizer>> CharTokenizer::FromText(std::string_view text) {
  std::set<char32_t> characters;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(at, 4));
    if (step.kind != Utf8Kind::kCharacter) return BadUtf8("text", at, text[at]);
    characters.insert(step.code);
    at += step.length;
  }
  const std::vector<char32_t> sorted(characters.begin(), characters.end());
  return std::make_unique<CharTokenizer>(sorted);
}

Result<std::vector<int32_t>> CharTokenizer::Encode(std::string_view text,
                                                   const TextPlace& place) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(at, 4));
    if (step.kind != Utf8Kind::kCharacter) return BadUtf8(place.name, place.byte + at, text[at]);
    const int32_t id = step.code < ids_.size() ? ids_[step.code] : -1;
    if (id < 0) {
      return BadRequest(
          place.name,
          fmt::format("character {} at byte {}", CharacterName(step.code), place.byte + at),
          "characters of the vocabulary", Contents());
    }
    ids.push_back(id);
    at += step.length;
  }
  return ids;
}

size_t CharTokenizer::CutAt(std::string_view text, size_t from) const {
  return CharacterStart(text, from);
}

std::string CharTokenizer::Json() const { return TokenizerJsonWithoutMerges(bytes_, false); }

// "it holds 65 characters: U+000A U+0020 ! $ & ' , - . 3 : ; ? A-Z a-z".
std::string CharTokenizer::Contents() const {
  constexpr int kShown = 40;
  std::string list;
  int shown = 0;
  for (char32_t code = 0; code < ids_.size();) {
    if (ids_[code] < 0) {
      ++code;
      continue;
    }
    if (++shown > kShown) {
      list += " ...";
      break;
    }
    char32_t last = code;
    while (last + 1 < ids_.size() && ids_[last + 1] >= 0) ++last;
    const auto picture = [](char32_t c) {
      const std::string name = CharacterName(c);
      const size_t quote = name.find('\'');
      return quote == std::string::npos ? name : name.substr(quote + 1, name.size() - quote - 2);
    };
    const bool range = last >= code + 2 && picture(code).size() < 6 && code > ' ';
    list += ' ' + picture(code);
    if (range) list += '-' + picture(last);
    code = range ? last + 1 : code + 1;
  }
  return fmt::format("it holds {} character{}:{}", vocab_size(), Plural(vocab_size()), list);
}

}  // namespace heed
