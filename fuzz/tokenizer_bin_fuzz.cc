// Any bytes as llama2.c's tokenizer.bin: a vocabulary that encodes its own bytes and survives
// tokenizer.json, or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer_bin.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = heed::ParseTokenizerBin(input, "fuzz");
  if (!tokenizer) return tokenizer.error().Message().empty() ? std::abort(), 0 : 0;
  const auto ids = (*tokenizer)->Encode(input);
  if (!ids) return 0;
  for (const int32_t id : *ids) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
  }
  const auto again = heed::ParseTokenizerJson((*tokenizer)->Json(), "again");
  if (again && (*again)->vocab_size() != (*tokenizer)->vocab_size()) std::abort();
  return 0;
}
