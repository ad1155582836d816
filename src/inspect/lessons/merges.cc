#include <map>
#include <utility>

#include "inspect/lessons/lesson.h"
#include "text/bpe_trainer.h"

namespace heed {
namespace {

constexpr std::string_view kText = "low low lower";
constexpr int64_t kBytes = 256;

// The tokens of each piece of the text, as a vocabulary cuts it.
using Words = std::vector<std::vector<std::string>>;

// Spaces are shown as _, so that they can be seen.
std::string Visible(std::string_view bytes) {
  std::string text(bytes);
  for (char& c : text) c = c == ' ' ? '_' : c;
  return text;
}

Result<Words> WordsAfter(int64_t merges) {
  HEED_ASSIGN(BpeVocabulary vocabulary, TrainBpe({&kText, 1}, kBytes + merges));
  HEED_ASSIGN(const auto tokenizer, BpeTokenizer::Create(std::move(vocabulary), "lesson"));
  Words words;
  for (size_t at = 0; at < kText.size();) {
    const size_t end = PieceEnd(SplitPattern::kGpt2, kText, at);
    HEED_ASSIGN(const std::vector<int32_t> ids, tokenizer->Encode(kText.substr(at, end - at)));
    std::vector<std::string>& word = words.emplace_back();
    for (const int32_t id : ids) word.push_back(Visible(tokenizer->TokenBytes(id)));
    at = end;
  }
  return words;
}

std::string Spelled(const Words& words) {
  std::string text;
  for (const auto& word : words) {
    text += text.empty() ? "" : " | ";
    for (size_t i = 0; i < word.size(); ++i) text += (i == 0 ? "" : " ") + word[i];
  }
  return text;
}

Step Lengths(std::string name, std::string formula, const Words& words) {
  Step step{std::move(name), std::move(formula), "words", {3}, {}, Spelled(words), {}, {}};
  for (const auto& word : words) {
    step.values.push_back(static_cast<double>(word.size()));
    std::string whole;
    for (const std::string& token : word) whole += token;
    step.columns.push_back(whole);
  }
  return step;
}

Step Pairs(const Words& words, std::string note) {
  std::map<std::string, double> counts;
  for (const auto& word : words) {
    for (size_t i = 1; i < word.size(); ++i) ++counts[word[i - 1] + " " + word[i]];
  }
  Step step{
      "pairs", "how often two tokens stand side by side", "pairs", {}, {}, std::move(note), {}, {}};
  for (const auto& [pair, count] : counts) {
    step.columns.push_back(pair);
    step.values.push_back(count);
  }
  step.shape = {static_cast<int64_t>(step.values.size())};
  return step;
}

}  // namespace

Result<std::vector<Step>> TellMerges(const LessonInput&) {
  HEED_ASSIGN(const Words bytes, WordsAfter(0));
  HEED_ASSIGN(const Words once, WordsAfter(1));
  HEED_ASSIGN(const Words twice, WordsAfter(2));
  return std::vector<Step>{
      Lengths("bytes", "tokens of each word of \"low low lower\" before any merge", bytes),
      Pairs(bytes, "l o and o w both stand there 3 times; the pair with the smaller ids merges."),
      Lengths("merge 1", "l o becomes lo", once),
      Pairs(once, "Words keep their space in front, as GPT-2's do; no merge crosses two words."),
      Lengths("merge 2", "lo w becomes low", twice),
      {"GPT-2",
       "bytes, merges, the end of a text, and all ids",
       "parts",
       {4},
       {256, 50000, 1, 256 + 50000 + 1},
       "",
       {},
       {"bytes", "merges", "end", "ids"}}};
}

}  // namespace heed
