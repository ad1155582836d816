// Any bytes as tokenizer.json, and as text for the vocabularies that can be read.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/byte_tokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

// The input holds a file, a zero byte, and a text to write in its vocabulary.
void RoundTrip(const heed::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text);
  // Vocabularies with merges may normalize, or have a token for what is unknown.
  if (ids && tokenizer.kind() != "bpe" && tokenizer.Decode(*ids) != text) std::abort();
  const auto again = heed::ParseTokenizerJson(tokenizer.Json(), "again");
  if (!again || (*again)->Fingerprint() != tokenizer.Fingerprint()) std::abort();
  if (ids && *(*again)->Encode(text) != *ids) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view text = zero == input.npos ? input : input.substr(zero + 1);
  const auto tokenizer = heed::ParseTokenizerJson(input.substr(0, zero), "fuzz");
  if (tokenizer) RoundTrip(**tokenizer, text);
  const heed::ByteTokenizer bytes;
  if (bytes.Decode(*bytes.Encode(text)) != text) std::abort();
  heed::Utf8Splitter splitter;
  const std::string whole = splitter.Push(text) + splitter.Flush();
  if (heed::FirstBadUtf8(whole) != whole.npos) std::abort();
  return 0;
}
