// A model as a folder with config.json, tokenizer.json and model.safetensors in Hugging Face's
// layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"
#include "model/load.h"
#include "model/parameter_loader.h"
#include "tensor/dtype.h"
#include "text/tokenizer.h"

namespace heed {

// Errors: a file that is missing or damaged; tensors that are missing, surplus, of another shape or
// of integers; a vocabulary larger than the embedding.
Result<LoadedModel> LoadFolder(const std::string& folder, const Kernels& kernels,
                               Weights weights = Weights::kOwned);

// Fills the model's parameters from one safetensors file, or from the shards of
// `model.safetensors.index.json`, found in `folder`. Names may carry or lack the prefixes
// "transformer.", "model.", "module." and "_orig_mod."; GPT-2's linear layers may all be [out, in],
// as nanoGPT and minGPT have them.
Result<LoadReport> LoadParameters(const std::string& folder, Gpt* model,
                                  Weights weights = Weights::kOwned);

// The names of the files in the weight_map of a model.safetensors.index.json, each once, in order.
// Errors (kFormat): not JSON, no weight_map, a name that is not that of a file beside it.
Result<std::vector<std::string>> ParseShardIndex(std::string_view text, const std::string& where);

struct SaveSettings {
  DType dtype = DType::kF32;            // of matrices: F32, F16 or BF16
  std::optional<DType> vector_dtype;    // of gains and biases; dtype when not given
  int64_t shard_bytes = 5'000'000'000;  // the most in one file, but for a single larger tensor
};

// Writes config.json, then tokenizer.json (unless null), then model.safetensors or its shards with
// their index, each by renaming a finished file; makes the folder when it is missing.
Status SaveModel(const std::string& folder, const Gpt& model, const Tokenizer* tokenizer,
                 bool overwrite, const SaveSettings& settings = {});
Status SaveParameters(const std::string& path, const Gpt& model, bool overwrite);

// Makes a folder and its parents; an existing one is fine. Error: a file is in the way, or the
// system refuses.
Status MakeFolder(const std::string& folder);

}  // namespace heed
