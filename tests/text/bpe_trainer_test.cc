#include "text/bpe_trainer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/parallel.h"

namespace heed {
namespace {

std::vector<std::string> NewTokens(const std::vector<std::string_view>& texts, int64_t vocab_size) {
  const auto vocabulary = TrainBpe(texts, vocab_size);
  EXPECT_TRUE(vocabulary) << vocabulary.error().Message();
  return {vocabulary->tokens.begin() + 256, vocabulary->tokens.end()};
}

// By hand: aa stands there four times; then "aa"+a and a+b twice each, and a has the smaller id;
// then aa+ab twice. Nothing else occurs twice.
TEST(TrainBpe, WorkedExample) {
  EXPECT_EQ(NewTokens({"aaabdaaabac"}, 300), (std::vector<std::string>{"aa", "ab", "aaab"}));
  EXPECT_EQ(NewTokens({"aaabdaaabac"}, 257), (std::vector<std::string>{"aa"}));
  EXPECT_EQ(NewTokens({}, 300), (std::vector<std::string>{}));
}

// The course's words: l o and o w both stand there three times, and l o merges first.
TEST(LessonRow01, TwoMergesByHand) {
  EXPECT_EQ(NewTokens({"low low lower"}, 258), (std::vector<std::string>{"lo", "low"}));
}

TEST(TrainBpe, BytesComeInTheOrderOfGpt2) {
  const auto vocabulary = *TrainBpe({}, 256);
  EXPECT_EQ(vocabulary.tokens[0], "!");
  EXPECT_EQ(vocabulary.tokens[64], "a");
  EXPECT_EQ(vocabulary.tokens[188], std::string(1, '\0'));
  EXPECT_EQ(vocabulary.tokens[220], " ");
}

TEST(TrainBpe, RefusesSizes) {
  EXPECT_FALSE(TrainBpe({}, 255));
  EXPECT_FALSE(TrainBpe({}, (1 << 20) + 1));
}

// The definition: count every pair anew for every merge.
std::vector<std::string> TrainedPlainly(const std::string& text, int64_t merges) {
  std::map<std::string, int> order;  // of the bytes among ids
  const auto vocabulary = *TrainBpe({}, 256);
  std::vector<std::string> tokens = vocabulary.tokens;
  for (int id = 0; id < 256; ++id) order[tokens[id]] = id;
  std::vector<std::vector<int>> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = PieceEnd(SplitPattern::kGpt2, text, at);
    words.emplace_back();
    for (; at < end; ++at) words.back().push_back(order[text.substr(at, 1)]);
  }
  for (int64_t m = 0; m < merges; ++m) {
    std::map<std::pair<int, int>, int> counts;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    std::pair<int, int> best;
    int most = 1;
    for (const auto& [pair, count] : counts) {
      if (count > most) most = count, best = pair;  // the map is in the order of ids
    }
    if (most == 1) break;
    for (auto& word : words) {
      std::vector<int> merged;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && std::pair(word[i], word[i + 1]) == best;
        merged.push_back(here ? static_cast<int>(tokens.size()) : word[i]);
        i += here;
      }
      word = merged;
    }
    tokens.push_back(tokens[best.first] + tokens[best.second]);
  }
  return {tokens.begin() + 256, tokens.end()};
}

RC_GTEST_PROP(TrainBpe, EqualsTheDefinition, ()) {
  const auto letters = *rc::gen::container<std::string>(200, rc::gen::element('a', 'b', 'c', ' '));
  RC_ASSERT(NewTokens({letters}, 256 + 40) == TrainedPlainly(letters, 40));
}

TEST(TrainBpe, DoesNotDependOnThreadsOrOrder) {
  std::vector<std::string> texts;
  for (int i = 0; i < 70; ++i)
    texts.push_back("word" + std::to_string(i * 7919 % 97) + " again and");
  const std::vector<std::string_view> forward(texts.begin(), texts.end());
  const std::vector<std::string_view> backward(texts.rbegin(), texts.rend());
  const int threads = NumThreads();
  SetNumThreads(1);
  const std::vector<std::string> one = NewTokens(forward, 400);
  SetNumThreads(3);
  EXPECT_EQ(NewTokens(forward, 400), one);
  EXPECT_EQ(NewTokens(backward, 400), one);
  SetNumThreads(threads);
}

}  // namespace
}  // namespace heed
