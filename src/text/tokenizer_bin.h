// llama2.c's tokenizer.bin: the longest piece's length, then for each piece a score, a length and
// its bytes. Source: karpathy/llama2.c, tokenizer.py and run.c.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace heed {

// Ids 0, 1, 2 are unknown, start and end; <0x00> to <0xFF> stand for bytes. A text gets a space
// before it, as in SentencePiece. Errors (kFormat): a length below zero or beyond the file, pieces
// longer than the header says, and what VocabularyFromScores and BpeTokenizer refuse.
Result<std::unique_ptr<Tokenizer>> ParseTokenizerBin(std::string_view bytes,
                                                     const std::string& where);

}  // namespace heed
