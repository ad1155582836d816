#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/nearest.h"
#include "base/plural.h"
#include "data/adder.h"
#include "data/stories.h"
#include "text/bpe_tokenizer.h"
#include "text/bpe_trainer.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

constexpr std::string_view kStories = "builtin:stories";
constexpr std::string_view kAdder = "builtin:adder";
constexpr int64_t kStoryBytes = 5'000'000;
constexpr int64_t kAdderDigits = 2;
constexpr int64_t kBpeTokens = 4096;  // of bpe when no number is given

Result<std::unique_ptr<Tokenizer>> LearnTokenizer(const Corpus& corpus, int64_t vocab_size) {
  HEED_ASSIGN(BpeVocabulary vocabulary,
              TrainBpe(CutForPatterns(corpus), vocab_size > 0 ? vocab_size : kBpeTokens));
  return BpeTokenizer::Create(std::move(vocabulary), "bpe");
}

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const DataOptions& options, const Corpus& corpus) {
  const std::string& name = options.tokenizer;
  if (name == "bpe") return LearnTokenizer(corpus, options.vocab_size);
  if (options.vocab_size > 0) {
    return BadRequest("vocab_size",
                      fmt::format("{} beside the tokenizer '{}'", options.vocab_size, name),
                      "the tokenizer bpe, which learns that many tokens");
  }
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  if (name != "char") return OpenTokenizer(name);
  HEED_ASSIGN(const std::vector<char32_t> characters, DistinctCharacters(corpus));
  return std::make_unique<CharTokenizer>(characters);
}

Result<DataSet> OpenAdder(const DataOptions& options, std::unique_ptr<Tokenizer> vocabulary) {
  HEED_ASSIGN(auto adder, AdderBatches::Make(kAdderDigits, options.seed));
  if (options.block_size < adder->block()) {
    return BadRequest("block_size", fmt::format("{}", options.block_size),
                      fmt::format("at least {} for {}", adder->block(), kAdder));
  }
  if (vocabulary == nullptr) {
    HEED_ASSIGN(vocabulary, CharTokenizer::FromText("0123456789"));
  }
  std::vector<int32_t> wanted(static_cast<size_t>(adder->vocab_size()));
  std::iota(wanted.begin(), wanted.end(), 0);
  const auto digits = vocabulary->Encode("0123456789");
  if (vocabulary->vocab_size() != adder->vocab_size() || !digits || *digits != wanted) {
    return BadRequest("tokenizer",
                      fmt::format("a vocabulary of {} token{}", vocabulary->vocab_size(),
                                  Plural(vocabulary->vocab_size())),
                      fmt::format("the ten digits in order for {}", kAdder));
  }
  return DataSet{std::move(vocabulary), std::move(adder)};
}

}  // namespace

Result<DataSet> OpenData(const DataOptions& options, std::unique_ptr<Tokenizer> vocabulary) {
  const std::vector<std::string>& sources = options.sources;
  if (sources.empty()) {
    return BadRequest("text", "nothing to train on", "",
                      fmt::format("name files or folders, {} or {}", kStories, kAdder));
  }
  const bool builtin = std::any_of(sources.begin(), sources.end(), IsBuiltin);
  if (builtin && sources.size() > 1) {
    return BadRequest("text", "a built-in text among others", "one built-in text, or files");
  }
  if (builtin && sources[0] != kStories && sources[0] != kAdder) {
    const std::vector<std::string> known = {std::string(kStories), std::string(kAdder)};
    const std::string nearest = NearestName(sources[0], known);
    return BadRequest("text", fmt::format("'{}'", sources[0]),
                      fmt::format("{} or {}", kStories, kAdder),
                      nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
  }
  if (sources[0] == kAdder) return OpenAdder(options, std::move(vocabulary));

  const bool stories = sources[0] == kStories;
  Corpus corpus;
  if (stories) {
    corpus = Corpus::FromString(sources[0], StoryGrammar::Get().Text(options.seed, kStoryBytes));
  } else {
    HEED_ASSIGN(corpus, Corpus::Open(sources));
  }
  if (vocabulary == nullptr) {
    HEED_ASSIGN(vocabulary, MakeTokenizer(options, corpus));
  }
  HEED_ASSIGN(TokenStore store, TokenStore::Make(corpus, *vocabulary, options.store));
  HEED_ASSIGN(const Split split, SplitTokens(store.size(), options.val_fraction, options.block_size,
                                             corpus.parts()[0].name));
  const int64_t vocab_size = vocabulary->vocab_size();
  // The floor is known in characters: for tokens of one character each.
  if (stories && store.size() == corpus.bytes()) {
    return DataSet{std::move(vocabulary), std::make_unique<StoryBatches>(
                                              std::string(corpus.parts()[0].text), std::move(store),
                                              split, options.block_size, vocab_size)};
  }
  return DataSet{
      std::move(vocabulary),
      std::make_unique<TextBatches>(std::move(store), split, options.block_size, vocab_size)};
}

}  // namespace heed
