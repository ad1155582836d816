// Vocabularies of characters as SentencePiece's lists of scored pieces, which llama2.c and GGUF
// keep.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/bpe_tokenizer.h"

namespace heed {

// The pieces [id], with U+2581 for the space and a merged piece's score the negative of its lowest
// rank; VocabularyFromScores makes the same merges of them where each piece has one rank.
std::vector<ScoredPiece> PiecesOf(const BpeVocabulary& vocabulary);

// The contents of llama2.c's tokenizer.bin for a vocabulary; nothing when it would be read back as
// another one.
std::optional<std::string> TokenizerBin(const Tokenizer& tokenizer);

}  // namespace heed
