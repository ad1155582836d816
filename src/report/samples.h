// Prompts times temperatures, with what can be said of each text by counting.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/language_model.h"

namespace heed {

// Runs of n words in a text, and how many of them are different (Li et al. 2016, "distinct-n").
struct DistinctRuns {
  int64_t distinct = 0, total = 0;
  // 1 for a text too short to have a run.
  double share() const {
    return total == 0 ? 1 : static_cast<double>(distinct) / static_cast<double>(total);
  }
};
DistinctRuns CountDistinctRuns(std::string_view text, int64_t n);

struct SheetRow {
  std::string prompt;
  double temperature = 0;
  std::string text;  // the continuation alone
  int64_t tokens = 0;
  double entropy = 0;     // nats a token, of the distributions that it was drawn from
  double distinct_1 = 0;  // share of words that are new
  double distinct_2 = 0;  // share of pairs of words that are
  double repetition = 0;  // share of triples of words that were there before
  double tokens_per_second = 0;
};

struct SheetRequest {
  std::vector<std::string> prompts;
  std::vector<double> temperatures;
  int64_t max_tokens = 160;
  uint64_t seed = 0;
};

// One sample of each prompt at each temperature. Errors: a prompt outside the vocabulary or
// without tokens; as SamplingSettings::Validate and Generate.
Result<std::vector<SheetRow>> MakeSheet(const LanguageModel& model, const SheetRequest& request);

}  // namespace heed
