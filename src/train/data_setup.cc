#include "train/data_setup.h"

#include <algorithm>
#include <utility>

#include "data/corpus.h"
#include "data/stories.h"
#include "io/file.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"

namespace heed {
namespace {

// The built-in texts are the same for every run, so that runs can be compared.
constexpr uint64_t kBuiltinSeed = 1;
constexpr int64_t kStoriesBytes = 1 << 20;
constexpr int64_t kAdderDigits = 2;
constexpr size_t kMostTokenizerBytes = size_t{64} << 20;

constexpr std::string_view kBuiltin = "builtin:";

Result<std::unique_ptr<Tokenizer>> TokenizerOf(const std::string& kind, const Corpus& corpus) {
  if (kind == "char") {
    HEED_ASSIGN(const std::vector<char32_t> characters, DistinctCharacters(corpus));
    return std::make_unique<CharTokenizer>(characters);
  }
  if (kind == "byte") return std::make_unique<ByteTokenizer>();
  if (kind == "bpe" || kind == "gpt2") {
    return BadRequest("--tokenizer", kind, "char, byte, or the path of a tokenizer.json");
  }
  HEED_ASSIGN(const std::string json, ReadFile(kind, kMostTokenizerBytes));
  return ParseTokenizerJson(json, kind);
}

Result<Corpus> OpenCorpus(std::span<const std::string> paths) {
  if (paths.empty()) {
    return BadRequest("data", "nothing", "a text file, a folder, builtin:stories or builtin:adder");
  }
  const auto builtin = std::find_if(paths.begin(), paths.end(),
                                    [](const auto& path) { return path.starts_with(kBuiltin); });
  if (builtin == paths.end()) return Corpus::Open(paths);
  if (*builtin != "builtin:stories" && *builtin != "builtin:adder") {
    return BadRequest("data", *builtin, "builtin:stories or builtin:adder");
  }
  if (paths.size() > 1) {
    return BadRequest("data", *builtin + " beside other texts", "one built-in text, or files");
  }
  return Corpus::FromString(*builtin, *builtin == "builtin:stories"
                                          ? StoryGrammar::Get().Text(kBuiltinSeed, kStoriesBytes)
                                          : "0123456789");
}

}  // namespace

Result<TrainingData> OpenTrainingData(std::span<const std::string> paths,
                                      std::unique_ptr<Tokenizer> tokenizer,
                                      const std::string& tokenizer_kind, double val_fraction,
                                      int64_t block_size, const std::string& scratch_folder) {
  HEED_ASSIGN(const Corpus corpus, OpenCorpus(paths));
  TrainingData data;
  data.tokenizer = std::move(tokenizer);
  const std::string& name = corpus.parts().front().name;
  if (name == "builtin:adder") {
    if (data.tokenizer == nullptr) {
      HEED_ASSIGN(data.tokenizer, TokenizerOf("char", corpus));
    }
    HEED_ASSIGN(std::unique_ptr<AdderBatches> adder,
                AdderBatches::Make(kAdderDigits, kBuiltinSeed));
    data.adder = adder.get();
    data.source = std::move(adder);
    data.prompts = {"8550"};
    return data;
  }
  if (data.tokenizer == nullptr) {
    HEED_ASSIGN(data.tokenizer, TokenizerOf(tokenizer_kind, corpus));
  }
  HEED_ASSIGN(TokenStore store, TokenStore::Make(corpus, *data.tokenizer, {scratch_folder}));
  HEED_ASSIGN(const Split split, SplitTokens(store.size(), val_fraction, block_size, name));
  const int64_t vocab_size = data.tokenizer->vocab_size();
  if (name == "builtin:stories" && store.size() == corpus.bytes()) {
    data.prompts.assign(kStoryPrompts.begin(), kStoryPrompts.end());
    data.source = std::make_unique<StoryBatches>(std::string(corpus.parts().front().text),
                                                 std::move(store), split, block_size, vocab_size);
    return data;
  }
  // nanoGPT's own beginning, where the vocabulary can spell it.
  data.prompts = {data.tokenizer->Encode("\n") ? "\n" : std::string(data.tokenizer->TokenBytes(0))};
  data.source = std::make_unique<TextBatches>(std::move(store), split, block_size, vocab_size);
  return data;
}

}  // namespace heed
