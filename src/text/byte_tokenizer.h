// One token per byte, ids equal to the bytes: spells anything.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace heed {

// The character that stands for a byte in GPT-2's vocabularies: printable Latin-1 for itself, the
// other 68 from U+0100 on, in order.
char32_t ByteSymbol(uint8_t byte);
// The bytes that a text of such characters stands for; nothing when another character is in it.
std::optional<std::string> UnspellBytes(std::string_view text);

class ByteTokenizer : public Tokenizer {
 public:
  std::string_view kind() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  std::string_view TokenBytes(int32_t id) const override;
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const TextPlace& place) const override;
  size_t CutAt(std::string_view text, size_t from) const override;
  std::string Json() const override;
};

}  // namespace heed
