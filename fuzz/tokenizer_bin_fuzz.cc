// Any bytes as llama2.c's tokenizer.bin.
#include "text/tokenizer_bin.h"
#include "vocabulary_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  heed::FuzzVocabulary(heed::ParseTokenizerBin(input, "fuzz"), input);
  return 0;
}
