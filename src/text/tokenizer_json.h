// Writes tokenizer.json of Hugging Face's BPE type without merges.
#pragma once

#include <span>
#include <string>

namespace heed {

// tokens[id] as Hugging Face spells them (UTF-8): characters, or with `byte_level` the symbols of
// GPT-2's byte alphabet.
std::string TokenizerJsonWithoutMerges(std::span<const std::string> tokens, bool byte_level);

}  // namespace heed
