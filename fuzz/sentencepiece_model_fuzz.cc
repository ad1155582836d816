// Any bytes as SentencePiece's model.
#include "text/sentencepiece_model.h"
#include "vocabulary_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  heed::FuzzVocabulary(heed::ParseSentencePieceModel(input, "fuzz"), input);
  return 0;
}
