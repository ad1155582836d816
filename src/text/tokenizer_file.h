// Vocabularies on disk, told apart by their names and what is in them.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace heed {

// Opens tokenizer.json; a SentencePiece model (*.model); llama2.c's *.bin; GPT-2's vocab.json or
// encoder.json with merges.txt or vocab.bpe beside it; or a folder that holds one of them, looked
// for in this order. Errors: (kRequest) nothing there, or a folder without any; (kIo, kFormat) as
// the readers.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path);

}  // namespace heed
