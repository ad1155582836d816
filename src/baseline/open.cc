#include "baseline/open.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/plural.h"
#include "baseline/ngram.h"
#include "io/file.h"
#include "model/load.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

// False also for what is no config.json: the loader of GPTs says what is wrong with it.
bool IsNgram(const std::string& folder) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const Result<std::string> text = ReadFile(path, kMostBytes);
  if (!text) return false;
  const Result<nlohmann::json> json = ParseJsonObject(*text, path);
  return json && json->value("model", nlohmann::json()) == NameOf(ModelKind::kNgram);
}

}  // namespace

Result<LanguageModel> OpenModel(const std::string& folder, const Kernels& kernels,
                                Weights weights) {
  LanguageModel opened;
  if (IsNgram(folder)) {
    HEED_ASSIGN(Ngram ngram, Ngram::Load(folder));
    opened.tokenizer = OpenTokenizer(folder);
    if (opened.tokenizer && (*opened.tokenizer)->vocab_size() != ngram.vocab_size()) {
      return Fail(ErrorKind::kFormat, folder,
                  fmt::format("{} token{} in tokenizer.json", (*opened.tokenizer)->vocab_size(),
                              Plural((*opened.tokenizer)->vocab_size())),
                  fmt::format("{}, as config.json says", ngram.vocab_size()));
    }
    opened.predictor = std::make_unique<Ngram>(std::move(ngram));
    return opened;
  }
  HEED_ASSIGN(LoadedModel loaded, LoadModel(folder, kernels, "", weights));
  opened.gpt = std::move(loaded.model);
  opened.tokenizer = std::move(loaded.tokenizer);
  opened.dtype = loaded.report.type;
  return opened;
}

}  // namespace heed
