#include "model/load.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "base/plural.h"
#include "io/tensor_entry.h"
#include "model/folder.h"
#include "model/gguf_model.h"
#include "model/gguf_vocabulary.h"
#include "model/llama2c_model.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

Result<LoadedModel> LoadFile(const std::string& path, const Kernels& kernels,
                             const std::string& vocabulary, Weights weights) {
  HEED_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (IsPickle(file.bytes())) return PickleError(path);
  if (file.text().starts_with("GGUF")) return LoadGguf(path, kernels, weights);
  if (FormatOf(path) == CheckpointFormat::kLlama2c) {
    return LoadLlama2c(path, kernels, vocabulary.empty() ? VocabularyBeside(path) : vocabulary,
                       weights);
  }
  return Fail(ErrorKind::kIo, path, "a file",
              "a model's folder with config.json and model.safetensors, a .gguf or a .bin file");
}

}  // namespace

std::span<const EnumName<CheckpointFormat>> EnumNames(CheckpointFormat) {
  static constexpr EnumName<CheckpointFormat> kNames[] = {
      {CheckpointFormat::kHuggingFace, "huggingface"},
      {CheckpointFormat::kGguf, "gguf"},
      {CheckpointFormat::kLlama2c, "llama2c"}};
  return kNames;
}

CheckpointFormat FormatOf(const std::string& path) {
  const std::string ending = fs::path(path).extension().string();
  return ending == ".gguf"  ? CheckpointFormat::kGguf
         : ending == ".bin" ? CheckpointFormat::kLlama2c
                            : CheckpointFormat::kHuggingFace;
}

Result<std::unique_ptr<Tokenizer>> OpenVocabulary(const std::string& path) {
  if (FormatOf(path) != CheckpointFormat::kGguf) return OpenTokenizer(path);
  HEED_ASSIGN(const GgufFile file, GgufFile::Open(path));
  return GgufVocabulary(file);
}

Result<LoadedModel> LoadModel(const std::string& path, const Kernels& kernels,
                              const std::string& vocabulary, Weights weights) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Fail(ErrorKind::kIo, path, "nothing",
                "a model's folder with config.json and model.safetensors");
  }
  HEED_ASSIGN(LoadedModel loaded, fs::is_directory(path, error)
                                      ? LoadFolder(path, kernels, weights)
                                      : LoadFile(path, kernels, vocabulary, weights));
  if (vocabulary.empty()) return loaded;
  loaded.tokenizer = OpenVocabulary(vocabulary);
  if (!loaded.tokenizer) return tl::make_unexpected(loaded.tokenizer.error());
  HEED_TRY(CheckVocabulary(loaded.tokenizer, loaded.model->config(), vocabulary));
  return loaded;
}

Status CheckVocabulary(const Result<std::unique_ptr<Tokenizer>>& tokenizer,
                       const ModelConfig& config, const std::string& where) {
  if (!tokenizer || (*tokenizer)->vocab_size() <= config.vocab_size) return {};
  return Fail(
      ErrorKind::kFormat, where,
      fmt::format("{} token{}", (*tokenizer)->vocab_size(), Plural((*tokenizer)->vocab_size())),
      fmt::format("at most {}, the rows of the embedding", config.vocab_size),
      "this vocabulary belongs to another model");
}

}  // namespace heed
