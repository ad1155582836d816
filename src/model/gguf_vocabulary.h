// The vocabulary of a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "io/gguf.h"
#include "text/tokenizer.h"

namespace heed {

// From tokenizer.huggingface.json, where the file has it, else from the lists of tokens. Errors
// (kFormat): none there; a kind that heed does not have.
Result<std::unique_ptr<Tokenizer>> GgufVocabulary(const GgufFile& file);

// Adds the keys of a vocabulary (none when null) that llama.cpp needs for an embedding of
// `vocab_size` rows, and tokenizer.huggingface.json, from which heed reads it back whole.
void PutGgufVocabulary(const Tokenizer* tokenizer, int64_t vocab_size,
                       std::vector<std::pair<std::string, GgufValue>>* metadata);

}  // namespace heed
