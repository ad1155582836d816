// SentencePiece's tokenizer.model: a protocol buffer, read without libraries.
// Source: google/sentencepiece, src/sentencepiece_model.proto; protobuf.dev, "Encoding".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace heed {

// Reads the BPE and the character types. The start token is the model's bos_id where it has one.
// Errors (kFormat): bytes that are no such message, the unigram and word types, normalizers other
// than identity, and what VocabularyFromScores and BpeTokenizer refuse.
Result<std::unique_ptr<Tokenizer>> ParseSentencePieceModel(std::string_view bytes,
                                                           const std::string& where);

}  // namespace heed
