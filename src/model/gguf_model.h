// A model as a GGUF file, as llama.cpp reads and writes them: the architectures llama (also
// Mistral's), qwen2 and gpt2.
#pragma once

#include <string>

#include "base/status.h"
#include "io/gguf.h"
#include "model/load.h"
#include "tensor/blocks.h"

namespace heed {

// Numbers in few bits are widened. Errors: those of GgufFile::Open; another architecture or a
// feature that heed does not have; tensors that are missing, surplus or of another shape; a
// vocabulary larger than the embedding.
Result<LoadedModel> LoadGguf(const std::string& path, const Kernels& kernels,
                             Weights weights = Weights::kOwned);

// The resolved settings of the model in a file. Errors: those of LoadGguf that need no tensor's
// numbers.
Result<ModelConfig> GgufConfig(const GgufFile& file);

// Matrices as `type` (one that CanEncode), but f32 where their rows are not whole blocks; vectors
// and learned positions as f32, which llama.cpp expects. `tokenizer` may be null. Errors
// (kRequest): a mix of parts that no architecture of llama.cpp has.
Status SaveGguf(const std::string& path, const Gpt& model, const Tokenizer* tokenizer,
                BlockType type, bool overwrite);

}  // namespace heed
