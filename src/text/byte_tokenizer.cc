#include "text/byte_tokenizer.h"

#include <algorithm>
#include <array>

#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace heed {
namespace {

bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char, 256> AllBytes() {
  std::array<char, 256> bytes{};
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}
constexpr std::array<char, 256> kBytes = AllBytes();

}  // namespace

char32_t ByteSymbol(uint8_t byte) {
  if (IsPrintable(byte)) return byte;
  char32_t symbol = 0x100;
  for (int other = 0; other < byte; ++other) symbol += !IsPrintable(other);
  return symbol;
}

std::optional<std::string> UnspellBytes(std::string_view text) {
  static const std::array<int, 0x144> byte_of = [] {
    std::array<int, 0x144> bytes;
    bytes.fill(-1);
    for (int byte = 0; byte < 256; ++byte) bytes[ByteSymbol(static_cast<uint8_t>(byte))] = byte;
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(at, 4));
    const bool known = step.kind == Utf8Kind::kCharacter && step.code < byte_of.size();
    if (!known || byte_of[step.code] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[step.code]);
    at += step.length;
  }
  return bytes;
}

std::string_view ByteTokenizer::TokenBytes(int32_t id) const { return {&kBytes[id], 1}; }

Result<std::vector<int32_t>> ByteTokenizer::Encode(std::string_view text, const TextPlace&) const {
  std::vector<int32_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(),
                 [](char byte) { return static_cast<uint8_t>(byte); });
  return ids;
}

size_t ByteTokenizer::CutAt(std::string_view text, size_t from) const {
  return std::min(from, text.size());
}

std::string ByteTokenizer::Json() const {
  std::vector<std::string> symbols(256);
  for (int byte = 0; byte < 256; ++byte) {
    AppendUtf8(ByteSymbol(static_cast<uint8_t>(byte)), &symbols[byte]);
  }
  return TokenizerJsonWithoutMerges(symbols, true);
}

}  // namespace heed
