#include "data/corpus.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/parallel.h"
#include "base/plural.h"
#include "text/split.h"
#include "text/utf8.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

// Bytes of text that one call of a ParallelFor body works on, and how many calls at a time: fixed,
// so that nothing depends on the number of threads.
constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kWave = 32;

struct Piece {
  const Corpus::Part* part;
  size_t begin, end;

  std::string_view text() const { return part->text.substr(begin, end - begin); }
  TextPlace place() const { return {part->name, begin, /*continues=*/begin > 0}; }
};

// The parts cut into pieces of about kPieceBytes at places that `cut_at(text, from)` allows.
template <class CutAt>
std::vector<Piece> CutIntoPieces(const Corpus& corpus, const CutAt& cut_at) {
  std::vector<Piece> pieces;
  for (const Corpus::Part& part : corpus.parts()) {
    for (size_t begin = 0; begin < part.text.size();) {
      const size_t from = std::min(part.text.size(), begin + kPieceBytes);
      const size_t end = cut_at(part.text, from);
      pieces.push_back({&part, begin, end});
      begin = end;
    }
  }
  return pieces;
}

std::vector<Piece> CutForTokens(const Corpus& corpus, const Tokenizer& tokenizer) {
  return CutIntoPieces(corpus, [&tokenizer](std::string_view text, size_t from) {
    return tokenizer.CutAt(text, from);
  });
}

tl::unexpected<Error> SystemError(const std::string& where, const std::string& what, int error) {
  return Fail(ErrorKind::kIo, where, what + ": " + std::strerror(error));
}

bool IsHidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// The regular files below `folder`, unsorted. Links to folders are not followed: they may loop.
// Links that lead nowhere are no files; an editor leaves one beside a text that it has open.
Status ListFiles(const std::string& folder, std::vector<std::string>* files) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    if (IsHidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      files->push_back(entry->path().string());
    } else if (error == std::errc::no_such_file_or_directory ||
               error == std::errc::not_a_directory ||
               error == std::errc::too_many_symbolic_link_levels) {
      error.clear();
    }
    if (!error) entry.increment(error);
  }
  if (error) return SystemError(folder, "cannot be listed", error.value());
  return {};
}

// An unlinked temporary file, written from front to back.
class ScratchFile {
 public:
  ScratchFile() = default;
  ~ScratchFile() {
    if (fd_ >= 0) close(fd_);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  Status Create(const std::string& folder) {
    std::error_code error;
    folder_ = folder.empty() ? fs::temp_directory_path(error).string() : folder;
    std::string path = folder_ + "/heed-tokens-XXXXXX";
    fd_ = mkstemp(path.data());
    if (fd_ < 0) return SystemError(folder_, "no temporary file can be made", errno);
    unlink(path.c_str());
    return {};
  }
  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(folder_, "tokens cannot be written", errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }
  Result<MappedFile> Map() const { return MappedFile::Open(fmt::format("/proc/self/fd/{}", fd_)); }

 private:
  std::string folder_;
  int fd_ = -1;
};

template <class Id>
void Narrow(std::span<const int32_t> ids, std::vector<std::byte>* out) {
  out->resize(ids.size() * sizeof(Id));
  Id* narrow = reinterpret_cast<Id*>(out->data());
  std::transform(ids.begin(), ids.end(), narrow, [](int32_t id) { return static_cast<Id>(id); });
}

template <class Id>
void Widen(const std::byte* from, int64_t n, int32_t* out) {
  const Id* ids = reinterpret_cast<const Id*>(from);
  std::copy(ids, ids + n, out);
}

// The ids of a piece in `width` bytes each.
Result<std::vector<std::byte>> EncodePiece(const Piece& piece, const Tokenizer& tokenizer,
                                           int width) {
  HEED_ASSIGN(const std::vector<int32_t> ids, tokenizer.Encode(piece.text(), piece.place()));
  std::vector<std::byte> bytes;
  if (width == 1) Narrow<uint8_t>(ids, &bytes);
  if (width == 2) Narrow<uint16_t>(ids, &bytes);
  if (width == 4) Narrow<int32_t>(ids, &bytes);
  return bytes;
}

// A set of characters that many threads fill.
class CharacterSet {
 public:
  CharacterSet() : words_(0x110000 / 64) {}

  void Insert(char32_t code) {
    std::atomic<uint64_t>& word = words_[code / 64];
    const uint64_t bit = uint64_t{1} << code % 64;
    // Nearly always there already: look before writing what other threads read.
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  std::vector<char32_t> Sorted() const {
    std::vector<char32_t> characters;
    for (char32_t code = 0; code < words_.size() * 64; ++code) {
      if (words_[code / 64].load(std::memory_order_relaxed) >> code % 64 & 1) {
        characters.push_back(code);
      }
    }
    return characters;
  }

 private:
  std::vector<std::atomic<uint64_t>> words_;
};

}  // namespace

Result<Corpus> Corpus::Open(std::span<const std::string> paths) {
  Corpus corpus;
  const auto add = [&corpus](const std::string& path) -> Status {
    HEED_ASSIGN(MappedFile file, MappedFile::Open(path));
    if (!file.text().empty()) {
      corpus.parts_.push_back({path, file.text()});
      corpus.files_.push_back(std::move(file));
    }
    return {};
  };
  for (const std::string& path : paths) {
    const size_t before = corpus.parts_.size();
    std::error_code error;
    const bool folder = fs::is_directory(path, error);
    if (folder) {
      std::vector<std::string> files;
      HEED_TRY(ListFiles(path, &files));
      std::sort(files.begin(), files.end());
      for (const std::string& file : files) HEED_TRY(add(file));
    } else {
      HEED_TRY(add(path));
    }
    if (corpus.parts_.size() == before) {
      return Fail(ErrorKind::kFormat, path, folder ? "a folder without text" : "an empty file",
                  "some text");
    }
  }
  return corpus;
}

Corpus Corpus::FromString(std::string name, std::string text) {
  Corpus corpus;
  corpus.owned_ = std::make_unique<std::string>(std::move(text));
  corpus.parts_.push_back({std::move(name), *corpus.owned_});
  return corpus;
}

int64_t Corpus::bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += static_cast<int64_t>(part.text.size());
  return bytes;
}

Result<std::vector<char32_t>> DistinctCharacters(const Corpus& corpus) {
  const std::vector<Piece> pieces = CutIntoPieces(corpus, CharacterStart);
  CharacterSet characters;
  std::vector<size_t> bad(pieces.size(), std::string_view::npos);
  ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const std::string_view text = pieces[index].text();
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = NextUtf8(text.substr(at, 4));
      if (step.kind != Utf8Kind::kCharacter) {
        bad[index] = at;
        return;
      }
      characters.Insert(step.code);
      at += step.length;
    }
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (bad[i] == std::string_view::npos) continue;
    const size_t offset = pieces[i].begin + bad[i];
    return BadUtf8(pieces[i].part->name, offset, pieces[i].part->text[offset]);
  }
  return characters.Sorted();
}

std::vector<std::string_view> CutForPatterns(const Corpus& corpus) {
  std::vector<std::string_view> texts;
  for (const Piece& piece : CutIntoPieces(corpus, [](std::string_view text, size_t at) {
         while (at < text.size() && !SplitsAt(text, at)) ++at;
         return std::min(at, text.size());
       })) {
    texts.push_back(piece.text());
  }
  return texts;
}

Result<int64_t> CountTokens(const Corpus& corpus, const Tokenizer& tokenizer) {
  const std::vector<Piece> pieces = CutForTokens(corpus, tokenizer);
  std::vector<Result<int64_t>> counts(pieces.size());
  ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    counts[i] = tokenizer.Encode(pieces[i].text(), pieces[i].place()).map([](const auto& ids) {
      return static_cast<int64_t>(ids.size());
    });
  });
  int64_t total = 0;
  for (const Result<int64_t>& count : counts) {
    HEED_TRY(count);
    total += *count;
  }
  return total;
}

Result<TokenStore> TokenStore::Make(const Corpus& corpus, const Tokenizer& tokenizer,
                                    const Options& options) {
  TokenStore store;
  store.width_ = tokenizer.vocab_size() <= 256 ? 1 : tokenizer.vocab_size() <= 65536 ? 2 : 4;
  const bool in_memory = corpus.bytes() * store.width_ <= options.memory_limit;
  ScratchFile scratch;
  if (!in_memory) HEED_TRY(scratch.Create(options.scratch_folder));

  const std::vector<Piece> pieces = CutForTokens(corpus, tokenizer);
  for (size_t first = 0; first < pieces.size(); first += kWave) {
    const size_t count = std::min(kWave, pieces.size() - first);
    std::vector<Result<std::vector<std::byte>>> wave(count);
    ParallelFor(static_cast<int64_t>(count), [&](int64_t i) {
      wave[i] = EncodePiece(pieces[first + i], tokenizer, store.width_);
    });
    for (const Result<std::vector<std::byte>>& ids : wave) {
      HEED_TRY(ids);
      store.size_ += static_cast<int64_t>(ids->size()) / store.width_;
      if (in_memory) {
        store.memory_.insert(store.memory_.end(), ids->begin(), ids->end());
      } else {
        HEED_TRY(scratch.Write(*ids));
      }
    }
  }
  store.memory_.shrink_to_fit();
  if (!in_memory) {
    HEED_ASSIGN(store.file_, scratch.Map());
  }
  return store;
}

void TokenStore::Read(int64_t begin, int64_t n, int32_t* out) const {
  HEED_DCHECK(begin >= 0 && n >= 0 && n <= size_ - begin);
  const std::byte* from = (in_memory() ? memory_.data() : file_.bytes().data()) + begin * width_;
  if (width_ == 1) Widen<uint8_t>(from, n, out);
  if (width_ == 2) Widen<uint16_t>(from, n, out);
  if (width_ == 4) Widen<int32_t>(from, n, out);
}

Result<Split> SplitTokens(int64_t tokens, double val_fraction, int64_t block_size,
                          const std::string& where) {
  if (!(val_fraction > 0 && val_fraction < 1)) {
    return BadRequest("val_fraction", fmt::format("{}", val_fraction), "a number between 0 and 1",
                      "0.1 holds out the last tenth of the text");
  }
  Split split;
  split.train = static_cast<int64_t>(static_cast<double>(tokens) * (1 - val_fraction));
  split.val = tokens - split.train;
  if (std::min(split.train, split.val) < block_size + 1) {
    return Fail(ErrorKind::kFormat, where,
                fmt::format("{} token{} for training and {} for validation", split.train,
                            Plural(split.train), split.val),
                fmt::format("at least block_size + 1 = {} in each", block_size + 1),
                "give more text, or a smaller block_size");
  }
  return split;
}

}  // namespace heed
