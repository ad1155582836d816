// A model as one of llama2.c's checkpoints.
#pragma once

#include <string>

#include "base/status.h"
#include "model/load.h"

namespace heed {

// Where a checkpoint's vocabulary lies when nobody says: tokenizer.bin beside it.
std::string VocabularyBeside(const std::string& path);

// Errors: those of Llama2cFile::Open; a vocabulary larger than the embedding.
Result<LoadedModel> LoadLlama2c(const std::string& path, const Kernels& kernels,
                                const std::string& vocabulary, Weights weights = Weights::kOwned);

// Writes the checkpoint in version 0 or 1. Errors (kRequest): a model that is not Llama's, or whose
// settings differ from what the format takes for granted.
Status SaveLlama2c(const std::string& path, const Gpt& model, int version, bool overwrite);

}  // namespace heed
