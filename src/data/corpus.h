// Text to train and evaluate on, and its tokens. Every offset is 64 bits wide.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "text/tokenizer.h"

namespace heed {

// Texts one after another. Files stay mapped, not copied.
class Corpus {
 public:
  struct Part {
    std::string name;
    std::string_view text;
  };

  // Files, and the files below folders sorted by path (hidden ones and empty ones are skipped).
  // Errors (kIo): missing, unreadable, not a regular file or folder; (kFormat): an empty file, a
  // folder without text.
  static Result<Corpus> Open(std::span<const std::string> paths);
  static Corpus FromString(std::string name, std::string text);

  const std::vector<Part>& parts() const { return parts_; }
  int64_t bytes() const;

 private:
  std::vector<MappedFile> files_;
  std::unique_ptr<std::string> owned_;
  std::vector<Part> parts_;
};

// The distinct characters of the corpus, sorted. Errors (kFormat): invalid UTF-8, with the file
// and the byte's offset in it.
Result<std::vector<char32_t>> DistinctCharacters(const Corpus& corpus);

// The corpus in parts of about 256 KiB, cut where every split pattern would (text/split.h).
std::vector<std::string_view> CutForPatterns(const Corpus& corpus);

// The number of tokens, in memory that does not grow with the corpus: files stay mapped. Errors: as
// Tokenizer::Encode, with the part's name.
Result<int64_t> CountTokens(const Corpus& corpus, const Tokenizer& tokenizer);

// A corpus tokenised once: ids in 1, 2 or 4 bytes each, by the size of the vocabulary.
class TokenStore {
 public:
  struct Options {
    std::string scratch_folder;               // for large stores; empty: the system's
    int64_t memory_limit = int64_t{1} << 30;  // bytes; larger stores go to an unlinked file
  };

  // Errors: as Tokenizer::Encode, with the part's name; (kIo) no room for the file.
  static Result<TokenStore> Make(const Corpus& corpus, const Tokenizer& tokenizer,
                                 const Options& options);

  int64_t size() const { return size_; }
  int width() const { return width_; }
  bool in_memory() const { return file_.bytes().empty(); }
  // Tokens begin .. begin + n - 1, all within size().
  void Read(int64_t begin, int64_t n, int32_t* out) const;

 private:
  int64_t size_ = 0;
  int width_ = 1;
  std::vector<std::byte> memory_;
  MappedFile file_;
};

// Where training and validation tokens lie in a store of n: the first int(n·(1 - val_fraction))
// and the rest, as nanoGPT cuts them.
struct Split {
  int64_t train = 0;  // tokens [0, train)
  int64_t val = 0;    // tokens [train, train + val)
};

// Errors (kRequest): val_fraction outside (0, 1); (kFormat): a split below block_size + 1 tokens.
Result<Split> SplitTokens(int64_t tokens, double val_fraction, int64_t block_size,
                          const std::string& where);

}  // namespace heed
