// From the names on a command line to a vocabulary and batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/batch.h"
#include "data/corpus.h"
#include "text/tokenizer.h"

namespace heed {

// Whether a source is the name of a built-in text, not of a file.
inline bool IsBuiltin(std::string_view source) { return source.starts_with("builtin:"); }

struct DataOptions {
  std::vector<std::string> sources;  // files and folders; or one of builtin:stories, builtin:adder
  // char, byte, bpe (learned from the sources), or what OpenTokenizer takes.
  std::string tokenizer = "char";
  int64_t vocab_size = 0;     // tokens that bpe learns; 0: 4096
  double val_fraction = 0.1;  // builtin:adder holds out by minGPT's rule instead
  int64_t block_size = 64;
  uint64_t seed = 1;  // of the built-in texts: the same for every run, so that runs compare
  TokenStore::Options store;
};

struct DataSet {
  std::unique_ptr<Tokenizer> tokenizer;
  // block() is block_size, but 6 for builtin:adder: two digits, two digits, the sum's first two.
  std::unique_ptr<BatchSource> batches;
};

// `vocabulary`, when given, is used in place of options.tokenizer (a run that goes on, a model that
// is trained further). Errors: as Corpus::Open, TokenStore::Make, OpenTokenizer, TrainBpe,
// SplitTokens; (kRequest) no source, built-in text mixed with others, vocab_size without bpe.
Result<DataSet> OpenData(const DataOptions& options,
                         std::unique_ptr<Tokenizer> vocabulary = nullptr);

}  // namespace heed
