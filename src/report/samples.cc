#include "report/samples.h"

#include <set>
#include <sstream>

#include "infer/generate.h"

namespace heed {

DistinctRuns CountDistinctRuns(std::string_view text, int64_t n) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  std::set<std::vector<std::string>> seen;
  DistinctRuns runs;
  for (size_t end = static_cast<size_t>(n); end <= words.size(); ++end) {
    const auto last = words.begin() + static_cast<ptrdiff_t>(end);
    seen.insert({last - n, last});
    ++runs.total;
  }
  runs.distinct = static_cast<int64_t>(seen.size());
  return runs;
}

Result<std::vector<SheetRow>> MakeSheet(const LanguageModel& model, const SheetRequest& request) {
  const Tokenizer& tokenizer = **model.tokenizer;
  std::vector<SampleRequest> requests;
  std::vector<SheetRow> rows;
  for (const std::string& prompt : request.prompts) {
    HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(prompt, {"--prompt"}));
    tokens = tokenizer.WithBos(std::move(tokens));
    if (tokens.empty()) return BadRequest("--prompt", "an empty text", "at least one token");
    for (const double temperature : request.temperatures) {
      const SamplingSettings sampling{.temperature = temperature};
      HEED_TRY(sampling.Validate());
      requests.push_back({tokens, sampling, request.seed});
      rows.push_back({prompt, temperature});
    }
  }
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  HEED_ASSIGN(const std::vector<Sample> samples, Generate(model, requests, options));
  for (size_t i = 0; i < rows.size(); ++i) {
    SheetRow& row = rows[i];
    row.text = samples[i].text;
    row.tokens = static_cast<int64_t>(samples[i].tokens.size());
    row.entropy = samples[i].entropy;
    row.distinct_1 = CountDistinctRuns(row.text, 1).share();
    row.distinct_2 = CountDistinctRuns(row.text, 2).share();
    row.repetition = 1 - CountDistinctRuns(row.text, 3).share();
    row.tokens_per_second = samples[i].decode_tokens_per_second;
  }
  return rows;
}

}  // namespace heed
