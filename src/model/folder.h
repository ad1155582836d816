// A model on disk: a folder with config.json, tokenizer.json and model.safetensors in Hugging
// Face's layout.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model/gpt.h"
#include "text/tokenizer.h"

namespace heed {

struct LoadedModel {
  std::unique_ptr<Gpt> model;
  // An error when tokenizer.json is missing or of a kind that is not supported: the model still
  // runs on token ids.
  Result<std::unique_ptr<Tokenizer>> tokenizer;
};

// Errors: a file that is missing or damaged; a tensor that is missing, surplus, of another shape or
// of integers; a vocabulary larger than the embedding.
Result<LoadedModel> LoadModel(const std::string& folder, const Kernels& kernels);

// The vocabulary in a model's folder. Errors: none there, damaged, or of an unknown kind.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& folder);

// Fills the model's parameters from one safetensors file, or from the shards of
// `model.safetensors.index.json`, found in `folder`. Names may carry the prefix "transformer.".
Status LoadParameters(const std::string& folder, Gpt* model);

// Writes config.json, then tokenizer.json (unless null), then model.safetensors, each by renaming
// a finished file; makes the folder when it is missing.
Status SaveModel(const std::string& folder, const Gpt& model, const Tokenizer* tokenizer,
                 bool overwrite);
Status SaveParameters(const std::string& path, const Gpt& model, bool overwrite);

// Makes a folder and its parents; an existing one is fine. Error: a file is in the way, or the
// system refuses.
Status MakeFolder(const std::string& folder);

}  // namespace heed
