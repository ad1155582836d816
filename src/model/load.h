// A model from whatever people have: a folder in Hugging Face's layout, a GGUF file, or one of
// llama2.c's checkpoints.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model/gpt.h"
#include "model/parameter_loader.h"
#include "text/tokenizer.h"

namespace heed {

struct LoadedModel {
  std::unique_ptr<Gpt> model;
  // An error when the vocabulary is missing or of a kind that is not supported: the model still
  // runs on token ids.
  Result<std::unique_ptr<Tokenizer>> tokenizer;
  LoadReport report;
};

// The kind of checkpoint that a path names.
enum class CheckpointFormat { kHuggingFace, kGguf, kLlama2c };

std::span<const EnumName<CheckpointFormat>> EnumNames(CheckpointFormat);

// By the ending: .gguf, .bin, else a folder.
CheckpointFormat FormatOf(const std::string& path);

// The vocabulary of a .gguf, or what OpenTokenizer takes.
Result<std::unique_ptr<Tokenizer>> OpenVocabulary(const std::string& path);

// With a `vocabulary` (a path for OpenVocabulary) in place of the model's own. Errors: those of
// LoadFolder, LoadGguf and LoadLlama2c; nothing there, or nothing of the kind; a given vocabulary
// that cannot be opened.
Result<LoadedModel> LoadModel(const std::string& path, const Kernels& kernels,
                              const std::string& vocabulary = "",
                              Weights weights = Weights::kOwned);

// Error (kFormat): a vocabulary (where there is one) of more tokens than the embedding has rows.
Status CheckVocabulary(const Result<std::unique_ptr<Tokenizer>>& tokenizer,
                       const ModelConfig& config, const std::string& where);

}  // namespace heed
