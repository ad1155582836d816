// A model's config.json: Hugging Face's "gpt2", "llama", "mistral" and "qwen2", and "heed" for
// every other mixture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/config.h"
#include "tensor/dtype.h"

namespace heed {

// The resolved settings. What is left out takes Hugging Face's default, the sizes excepted; GPT-2's
// dropout is its resid_pdrop, Llama's its attention_dropout. `where` is named in errors.
// Errors (kFormat): not JSON, a key that comes twice, a value of another type or out of range, a
// feature that heed does not have, another model_type; for "heed" any unknown key; and the rules of
// ModelConfig::Resolve.
Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& where);

// The tokens at which other programs begin and end a text.
struct SpecialTokens {
  std::optional<int64_t> bos, eos;
};

// config.json of resolved settings, under the model_type of their family; `dtype` is that of the
// weights, F32, F16 or BF16.
std::string ModelConfigJson(const ModelConfig& config, const SpecialTokens& tokens = {},
                            DType dtype = DType::kF32);

}  // namespace heed
