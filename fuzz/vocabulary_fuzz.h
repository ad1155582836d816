// What must hold of any vocabulary that a reader made of any bytes: it encodes those bytes into its
// own tokens and survives tokenizer.json; or there is an error that says something.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "text/tokenizer.h"

namespace heed {

inline void FuzzVocabulary(const Result<std::unique_ptr<Tokenizer>>& tokenizer,
                           std::string_view input) {
  if (!tokenizer) {
    if (tokenizer.error().Message().empty()) std::abort();
    return;
  }
  const auto ids = (*tokenizer)->Encode(input);
  if (!ids) return;
  for (const int32_t id : *ids) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
  }
  const auto again = ParseTokenizerJson((*tokenizer)->Json(), "again");
  if (again && (*again)->vocab_size() != (*tokenizer)->vocab_size()) std::abort();
}

}  // namespace heed
