#include "data/stories.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "data/dataset.h"

namespace heed {
namespace {

double Sum(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

// Choosing at random and multiplying the chances: the text with -log of its probability.
std::pair<std::string, double> Draw(const StoryGrammar& grammar, uint64_t seed, uint32_t story) {
  const RandomKey key{seed, story, 77};
  std::string text;
  double nats = 0;
  int32_t at = StoryGrammar::kStart;
  uint64_t draw = 0;
  do {
    const auto& point = grammar.points()[at];
    const auto& edge = grammar.edges()[point.first_edge + RandomBelow(key, draw++, point.edges)];
    nats += std::log(point.edges);
    text += edge.text;
    at = edge.to;
  } while (at != StoryGrammar::kStart);
  return {text, nats};
}

// Injectivity for every story there is: at no point does one edge's text begin another's.
TEST(Stories, NoChoiceBeginsLikeAnother) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  for (const auto& point : grammar.points()) {
    ASSERT_GE(point.edges, 1);
    std::vector<std::string_view> texts;
    for (int32_t e = 0; e < point.edges; ++e) {
      texts.push_back(grammar.edges()[point.first_edge + e].text);
    }
    std::sort(texts.begin(), texts.end());
    ASSERT_FALSE(texts[0].empty());
    // In sorted order a text is followed by those that begin with it.
    for (size_t i = 1; i < texts.size(); ++i) {
      ASSERT_FALSE(texts[i].starts_with(texts[i - 1])) << texts[i - 1] << " | " << texts[i];
    }
  }
}

TEST(Stories, DifferentChoicesGiveDifferentTexts) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  std::set<std::string> texts;
  for (uint32_t i = 0; i < 20'000; ++i) texts.insert(grammar.Story(1, i));
  // exp(-40) of a pair to be equal by chance.
  EXPECT_EQ(texts.size(), 20'000u);
}

TEST(Stories, EntropyAndLengthAgreeWithSampling) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  const int n = 20'000;
  double nats = 0, nats2 = 0, length = 0, length2 = 0;
  for (int i = 0; i < n; ++i) {
    const auto [text, h] = Draw(grammar, 5, static_cast<uint32_t>(i));
    const double l = static_cast<double>(text.size());
    nats += h / n;
    nats2 += h * h / n;
    length += l / n;
    length2 += l * l / n;
  }
  EXPECT_NEAR(grammar.StoryEntropy(), nats, 4 * std::sqrt((nats2 - nats * nats) / n));
  EXPECT_NEAR(grammar.StoryLength(), length, 4 * std::sqrt((length2 - length * length) / n));
  EXPECT_DOUBLE_EQ(grammar.EntropyPerCharacter(), grammar.StoryEntropy() / grammar.StoryLength());
}

// A story's probability is the product of its choices' chances: reading the text must find it.
TEST(Stories, SurprisalsOfATextSumToItsChoices) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  std::string all;
  double total = 0;
  for (uint32_t i = 0; i < 300; ++i) {
    const auto [text, nats] = Draw(grammar, 6, i);
    ASSERT_NEAR(Sum(grammar.Surprisals(text)), nats, 1e-9) << text;
    all += text;
    total += nats;
  }
  EXPECT_NEAR(Sum(grammar.Surprisals(all)), total, 1e-6);
}

// "Once upon a time there was a shy girl named Lily. " by hand: 3 openings, 16 natures, girl or
// boy, 5 girls; an opening is told by its first letter but for "There".
TEST(Stories, SurprisalsByHand) {
  const std::vector<double> nats =
      StoryGrammar::Get().Surprisals("Once upon a time there was a shy girl named Lily.");
  EXPECT_NEAR(nats[0], std::log(3), 1e-12);
  EXPECT_NEAR(nats[1], 0, 1e-12);
  EXPECT_NEAR(Sum(nats), std::log(3.0 * 16 * 2 * 5), 1e-9);
  // Of the 16 natures "shy" and "sleepy" begin with s.
  EXPECT_NEAR(nats[29], std::log(8), 1e-12);
  EXPECT_NEAR(nats[30], std::log(2), 1e-12);
  EXPECT_TRUE(std::isinf(StoryGrammar::Get().Surprisals("Once upan").back()));
}

TEST(Stories, WindowsAreADistributionOverTheNextCharacter) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  const std::string text = grammar.Text(3, 1'000'000);  // long enough for every character
  const std::set<char> characters(text.begin(), text.end());
  for (size_t begin : {100, 1397, 3001}) {
    for (size_t length : {1, 2, 5, 60}) {
      const std::string seen = text.substr(begin, length);
      double total = 0;
      for (char next : characters) {
        total += std::exp(-grammar.WindowSurprisals(seen + next).back());
      }
      ASSERT_NEAR(total, 1, 1e-9) << seen;
    }
  }
}

// The chance of a character and the one after it, counted in a long text.
TEST(Stories, WindowsOfTwoAgreeWithCounting) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  const std::string text = grammar.Text(4, 2'000'000);
  for (const std::string pair : {"th", "a ", "\n\n", ". ", "Li", "On"}) {
    double first = 0, both = 0;
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      if (text[i] != pair[0]) continue;
      ++first;
      both += text[i + 1] == pair[1];
    }
    const double p = std::exp(-grammar.WindowSurprisals(pair)[0]);
    // Characters of one story depend on each other: five times the error of independent draws.
    EXPECT_NEAR(p, both / first, 5 * std::sqrt(p * std::abs(1 - p) / first) + 1e-12) << pair;
  }
}

// Knowing more can only help on average: floors fall as windows grow, towards the entropy.
TEST(Stories, FloorsFallTowardsTheEntropy) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  double before = HUGE_VAL;
  for (int64_t block_size : {16, 64, 256}) {
    DataOptions options;
    options.sources = {"builtin:stories"};
    options.block_size = block_size;
    options.seed = 1;
    const auto data = OpenData(options);
    ASSERT_TRUE(data.has_value()) << data.error().Message();
    const LossFloor floor = *data->batches->loss_floor(100);
    EXPECT_LT(floor.nats_per_token, before);
    EXPECT_GT(floor.nats_per_token, grammar.EntropyPerCharacter());
    EXPECT_GT(floor.standard_error, 0);
    EXPECT_LT(floor.standard_error, 0.05 * floor.nats_per_token);
    before = floor.nats_per_token;
    const auto& stories = dynamic_cast<const StoryBatches&>(*data->batches);
    const LossFloor full = stories.FullContextFloor();
    EXPECT_NEAR(full.nats_per_token, grammar.EntropyPerCharacter(), 4 * full.standard_error);
    EXPECT_LT(full.standard_error, 0.01 * full.nats_per_token);
  }
}

// The floor belongs to the very windows of ValBatch.
TEST(Stories, FloorIsTheSurprisalOfTheValidationWindows) {
  DataOptions options;
  options.sources = {"builtin:stories"};
  options.block_size = 48;
  options.seed = 2;
  const auto data = *OpenData(options);
  for (int64_t wanted : {int64_t{1}, int64_t{7}}) {
    Batch batch;
    data.batches->ValBatch(0, wanted, wanted, &batch);
    double nats = 0;
    for (int64_t b = 0; b < wanted; ++b) {
      std::vector<int32_t> ids(batch.tokens.begin() + b * 48, batch.tokens.begin() + (b + 1) * 48);
      ids.push_back(batch.targets[(b + 1) * 48 - 1]);
      nats += Sum(StoryGrammar::Get().WindowSurprisals(data.tokenizer->Decode(ids)));
    }
    EXPECT_NEAR(data.batches->loss_floor(wanted)->nats_per_token, nats / (48.0 * wanted), 1e-12);
  }
}

TEST(Stories, TextIsDeterministicAndReadable) {
  const StoryGrammar& grammar = StoryGrammar::Get();
  EXPECT_EQ(grammar.Text(9, 10'000), grammar.Text(9, 10'000));
  EXPECT_NE(grammar.Text(9, 10'000), grammar.Text(10, 10'000));
  const std::string text = grammar.Text(9, 1'000'000);
  EXPECT_GE(text.size(), 1'000'000u);
  EXPECT_LT(text.size(), 1'001'000u);
  EXPECT_TRUE(text.ends_with("\n\n"));
  EXPECT_EQ(text.find_first_of("{}|"), std::string::npos);
  for (std::string_view prompt : kStoryPrompts) EXPECT_NE(text.find(prompt), std::string::npos);
  // Agreement: whoever is a girl is never "he".
  for (uint32_t i = 0; i < 2000; ++i) {
    const std::string story = grammar.Story(9, i);
    const bool girl = story.find(" girl named ") != std::string::npos;
    for (const char* word :
         girl ? std::vector{" he ", " his ", " He "} : std::vector{" she ", " her ", " She "}) {
      EXPECT_EQ(story.find(word), std::string::npos) << story;
    }
  }
}

TEST(Stories, FloorDoesNotDependOnThreads) {
  DataOptions options;
  options.sources = {"builtin:stories"};
  SetNumThreads(1);
  const double one = (*OpenData(options)).batches->loss_floor(20)->nats_per_token;
  SetNumThreads(3);
  const double three = (*OpenData(options)).batches->loss_floor(20)->nats_per_token;
  SetNumThreads(HardwareThreads());
  EXPECT_EQ(one, three);
}

}  // namespace
}  // namespace heed
