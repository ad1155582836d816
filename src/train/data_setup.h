// From what a user names to what the trainer reads: files and folders, or one of the built-in
// tasks, with their vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/adder.h"
#include "data/batch.h"
#include "text/tokenizer.h"

namespace heed {

struct TrainingData {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<BatchSource> source;
  std::vector<std::string> prompts;     // beginnings that suit the text
  const AdderBatches* adder = nullptr;  // set when the task is addition: it can be scored
};

// `paths` are files and folders, or "builtin:stories", or "builtin:adder". A tokenizer that is
// given (a resumed or continued run's) is used as it is; otherwise one of `tokenizer_kind` is made:
// "char" (the text's own characters), "byte", or the path of a tokenizer.json. Large texts are
// tokenised into an unlinked file in `scratch_folder`.
Result<TrainingData> OpenTrainingData(std::span<const std::string> paths,
                                      std::unique_ptr<Tokenizer> tokenizer,
                                      const std::string& tokenizer_kind, double val_fraction,
                                      int64_t block_size, const std::string& scratch_folder);

}  // namespace heed
