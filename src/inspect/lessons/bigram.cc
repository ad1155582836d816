#include <algorithm>
#include <cmath>
#include <map>

#include "infer/sampler.h"
#include "inspect/lessons/lesson.h"

namespace heed {

Result<std::vector<Step>> TellBigram(const LessonInput&) {
  const std::vector<std::vector<std::string>> sequences = {{"<s>", "I", "am", "Sam", "</s>"},
                                                           {"<s>", "I", "am", "here", "</s>"}};
  const std::vector<std::string> words = {"<s>", "I", "am", "Sam", "here", "</s>"};
  const auto V = static_cast<int64_t>(words.size());
  std::map<std::string, int32_t> id;
  for (const std::string& word : words) id.emplace(word, static_cast<int32_t>(id.size()));

  std::vector<double> tokens, counts(V * V), totals(V), probabilities(V * V);
  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i) {
      tokens.push_back(id[sequence[i]]);
      if (i > 0) counts[id[sequence[i - 1]] * V + id[sequence[i]]] += 1;
    }
  }
  for (int64_t at = 0; at < V * V; ++at) totals[at / V] += counts[at];
  // Log-counts as logits: the sampler's softmax makes them shares. "</s>" is followed by nothing.
  std::vector<double> hot(V);
  for (int64_t row = 0; row < V; ++row) {
    if (totals[row] == 0) continue;
    std::vector<float> logits(V);
    for (int64_t w = 0; w < V; ++w) logits[w] = std::log(static_cast<float>(counts[row * V + w]));
    const std::vector<double> p = SamplingProbabilities({}, logits, {});
    std::copy(p.begin(), p.end(), probabilities.begin() + row * V);
    if (row == id["am"]) hot = SamplingProbabilities({.temperature = 100}, logits, {});
  }
  return std::vector<Step>{
      {"tokens", "\"<s> I am Sam </s>\" and \"<s> I am here </s>\" as ids", "B T", {2, 5}, tokens},
      {"counts", "how often column follows row", "V V", {V, V}, counts, "", words, words},
      {"totals",
       "row sums: how often the word was followed by anything",
       "V",
       {V},
       totals,
       "",
       {},
       words},
      {"probability",
       "P(column given row) = count / total of the row",
       "V V",
       {V, V},
       probabilities,
       "P(am given I) = 1; P(Sam given am) = 1/2; a pair that was not seen has 0.",
       words,
       words},
      {"temperature",
       "softmax(log count / 100) behind \"am\"",
       "V",
       {V},
       hot,
       "Seen words become alike; unseen ones stay at exactly 0.",
       {},
       words}};
}

}  // namespace heed
