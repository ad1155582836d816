// One token per Unicode character, ids in the order of the characters' numbers (as nanoGPT's
// shakespeare_char does).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace heed {

class CharTokenizer : public Tokenizer {
 public:
  // characters[id]: distinct Unicode scalar values, in any order.
  explicit CharTokenizer(std::span<const char32_t> characters);
  // The distinct characters of `text`, sorted. Errors (kFormat): invalid UTF-8.
  static Result<std::unique_ptr<CharTokenizer>> FromText(std::string_view text);

  std::string_view kind() const override { return "char"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  std::string_view TokenBytes(int32_t id) const override { return bytes_[id]; }
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const TextPlace& place) const override;
  size_t CutAt(std::string_view text, size_t from) const override;
  std::string Json() const override;

 private:
  std::string Contents() const;

  std::vector<std::string> bytes_;  // [id]: the character in UTF-8
  std::vector<int32_t> ids_;        // [character]: its id, or -1; as long as the largest character
};

}  // namespace heed
