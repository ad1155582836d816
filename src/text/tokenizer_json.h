// Writes tokenizer.json of Hugging Face's BPE type, and reads parts of it that other files share.
// Source: huggingface/tokenizers, the serialisation of its models, normalizers, pre-tokenizers,
// post-processors and decoders.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/bpe_tokenizer.h"

namespace heed {

// tokens[id] as Hugging Face spells them (UTF-8): characters, or with `byte_level` the symbols of
// GPT-2's byte alphabet.
std::string TokenizerJsonWithoutMerges(std::span<const std::string> tokens, bool byte_level);

std::string TokenizerJson(const BpeVocabulary& vocabulary);

// Reads GPT-2's own pair of files: `vocab`, a JSON object from token to id (vocab.json,
// encoder.json), and `merges`, a line for each pair (merges.txt, vocab.bpe). No token of it is
// looked for in texts before they are cut, so every text is ordinary. Errors (kFormat): as
// ParseTokenizerJson, with the places' names.
Result<std::unique_ptr<Tokenizer>> ParseGpt2Files(std::string_view vocab, std::string_view merges,
                                                  const std::string& vocab_where,
                                                  const std::string& merges_where);

}  // namespace heed
