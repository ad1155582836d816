#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_bin.h"
#include "text/tokenizer_json.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"tokenizer.json", "tokenizer.model", "tokenizer.bin",
                                  "vocab.json", "encoder.json"};

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// merges.txt or vocab.bpe; a name that ends so is enough ("gpt2-vocab.bpe" beside
// "gpt2-encoder.json").
std::string MergesBeside(const fs::path& vocab) {
  const std::string name = vocab.filename().string();
  for (const char* ending : {"vocab.json", "encoder.json"}) {
    if (!name.ends_with(ending)) continue;
    const std::string prefix = name.substr(0, name.size() - std::string_view(ending).size());
    for (const char* merges : {"merges.txt", "vocab.bpe"}) {
      const fs::path beside = vocab.parent_path() / (prefix + merges);
      if (Exists(beside)) return beside.string();
    }
  }
  return "";
}

bool IsGpt2Vocabulary(const std::string& path) {
  return path.ends_with("vocab.json") || path.ends_with("encoder.json");
}

Result<std::unique_ptr<Tokenizer>> OpenGpt2(const std::string& path) {
  const std::string merges_path = MergesBeside(path);
  if (merges_path.empty()) {
    return BadRequest(path, "no merges beside it", "merges.txt or vocab.bpe");
  }
  HEED_ASSIGN(const MappedFile vocab, MappedFile::Open(path));
  HEED_ASSIGN(const MappedFile merges, MappedFile::Open(merges_path));
  return ParseGpt2Files(vocab.text(), merges.text(), path, merges_path);
}

Result<std::unique_ptr<Tokenizer>> OpenFile(const std::string& path) {
  if (IsGpt2Vocabulary(path)) return OpenGpt2(path);
  HEED_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.text().starts_with("GGUF")) {
    return BadRequest(path, "a GGUF file", "a file that holds a vocabulary alone, or a folder",
                      "heed convert makes a folder of it, with tokenizer.json");
  }
  if (path.ends_with(".model")) return ParseSentencePieceModel(file.text(), path);
  if (path.ends_with(".bin")) return ParseTokenizerBin(file.text(), path);
  return ParseTokenizerJson(file.text(), path);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path) {
  std::error_code error;
  if (!Exists(path)) {
    return BadRequest("tokenizer", fmt::format("'{}'", path),
                      "char, byte, bpe, or the path of a vocabulary",
                      path == "gpt2" ? "nothing is downloaded: give the folder that has GPT-2's "
                                       "vocab.json and merges.txt"
                                     : "tokenizer.json, tokenizer.model, tokenizer.bin, or "
                                       "vocab.json with merges.txt");
  }
  if (!fs::is_directory(path, error)) return OpenFile(path);
  for (const char* name : kNames) {
    const fs::path file = fs::path(path) / name;
    if (Exists(file)) return OpenFile(file.string());
  }
  return BadRequest(path, "a folder without a vocabulary",
                    "tokenizer.json, tokenizer.model, tokenizer.bin or vocab.json in it");
}

}  // namespace heed
