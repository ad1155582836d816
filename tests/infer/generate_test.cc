// Text from whole models: the cache, the batch and the window change no token, and stop strings
// cut where they should.
#include "infer/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "infer/cache.h"
#include "support/mixes.h"
#include "text/byte_tokenizer.h"

namespace heed {
namespace {

// A vocabulary of given tokens, of any bytes.
class ListTokenizer : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::string_view kind() const override { return "list"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string_view TokenBytes(int32_t id) const override { return tokens_[id]; }
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view, const TextPlace&) const override {
    return BadRequest("text", "unused");
  }
  size_t CutAt(std::string_view text, size_t) const override { return text.size(); }
  std::string Json() const override { return ""; }

 private:
  std::vector<std::string> tokens_;
};

// "a0", "b1", ...: two bytes each, all different.
ListTokenizer Pairs(int64_t n) {
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back({static_cast<char>('a' + i % 26), static_cast<char>('0' + i / 26)});
  }
  return ListTokenizer(tokens);
}

SampleRequest Ask(std::vector<int32_t> prompt, double temperature, uint64_t seed) {
  SampleRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = temperature;
  request.seed = seed;
  return request;
}

std::vector<Sample> Must(Result<std::vector<Sample>> samples) {
  if (!samples) throw std::runtime_error(samples.error().Message());
  return std::move(*samples);
}

// nanoGPT's loop: read the last block_size tokens whole, draw, append.
std::vector<int32_t> ByHand(const Gpt& model, const SampleRequest& request, int64_t max_tokens) {
  std::vector<int32_t> text = request.prompt, tokens;
  const int64_t V = model.config().vocab_size, block = model.config().block_size;
  for (int64_t i = 0; i < max_tokens; ++i) {
    const auto from = std::max<int64_t>(0, static_cast<int64_t>(text.size()) - block);
    const std::vector<int32_t> window(text.begin() + from, text.end());
    const std::vector<float> logits = FullLogits(model, window, 1);
    const std::span<const float> last(&logits[logits.size() - V], V);
    const std::vector<double> p = SamplingProbabilities(request.sampling, last, text);
    tokens.push_back(Draw(p, RandomUniform53({request.seed, 0, kSampleStream}, i)));
    text.push_back(tokens.back());
  }
  return tokens;
}

class Generating : public testing::TestWithParam<Mix> {
 protected:
  void SetUp() override {
    ModelConfig config = GetParam().config;
    config.block_size = 12;
    model_ = NoisyModel(config, SimdKernels());
    const int64_t V = config.vocab_size;
    requests_ = {Ask(RandomTokens(3, V, 1), 0, 1),    Ask(RandomTokens(5, V, 2), 1, 2),
                 Ask(RandomTokens(3, V, 1), 0.7, 3),  Ask(RandomTokens(1, V, 3), 1.5, 4),
                 Ask(RandomTokens(20, V, 4), 0.9, 5), Ask(RandomTokens(12, V, 5), 1, 6)};
    requests_[1].sampling.repetition_penalty = 1.3;
    requests_[3].sampling.top_k = 5;
    options_.max_tokens = 17;  // past the window for every one of them
  }
  std::unique_ptr<Gpt> model_;
  ListTokenizer tokenizer_ = Pairs(37);
  std::vector<SampleRequest> requests_;
  GenerateOptions options_;
};

TEST_P(Generating, CacheBatchAndWindowAreTheLoopByHand) {
  const std::vector<Sample> together = Must(Generate(*model_, tokenizer_, requests_, options_));
  ASSERT_EQ(together.size(), requests_.size());
  options_.cache = false;
  const std::vector<Sample> uncached = Must(Generate(*model_, tokenizer_, requests_, options_));
  options_.cache = true;
  for (size_t r = 0; r < requests_.size(); ++r) {
    const std::vector<int32_t> want = ByHand(*model_, requests_[r], options_.max_tokens);
    EXPECT_EQ(together[r].tokens, want) << r;
    EXPECT_EQ(uncached[r].tokens, want) << r;
    const auto alone = Must(Generate(*model_, tokenizer_, {&requests_[r], 1}, options_));
    EXPECT_EQ(alone[0].tokens, want) << r;
    EXPECT_TRUE(together[r].slid) << r;
    EXPECT_EQ(together[r].text, tokenizer_.Decode(want)) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, Generating, testing::ValuesIn(Mixes()), MixName);

// One model whose block is long enough for everything below.
class Text : public testing::Test {
 protected:
  std::unique_ptr<Gpt> model_ = NoisyModel(Mixes()[2].config, SimdKernels());
  ListTokenizer tokenizer_ = Pairs(37);
  GenerateOptions options_;

  Sample One(const SampleRequest& request) {
    return Must(Generate(*model_, tokenizer_, {&request, 1}, options_))[0];
  }
};

TEST_F(Text, MoreRowsThanDecodeTogether) {
  options_.max_tokens = 4;
  std::vector<SampleRequest> requests;
  for (uint64_t i = 0; i < 70; ++i) requests.push_back(Ask(RandomTokens(1 + i % 3, 37, i), 1, i));
  std::map<size_t, std::string> streamed;
  options_.on_text = [&](size_t r, std::string_view bytes) {
    streamed[r] += bytes;
    return true;
  };
  const std::vector<Sample> samples = Must(Generate(*model_, tokenizer_, requests, options_));
  ASSERT_EQ(samples.size(), 70u);
  for (size_t r = 0; r < samples.size(); ++r) {
    EXPECT_EQ(samples[r].tokens, ByHand(*model_, requests[r], 4)) << r;
    EXPECT_EQ(streamed[r], samples[r].text) << r;
  }
}

TEST_F(Text, TemperatureZeroNeedsNoSeed) {
  options_.max_tokens = 20;
  const Sample a = One(Ask({4, 2}, 0, 1)), b = One(Ask({4, 2}, 0, 999));
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(One(Ask({4, 2}, 1, 1)).tokens, One(Ask({4, 2}, 1, 999)).tokens);
}

TEST_F(Text, NoTokensAndOneToken) {
  options_.max_tokens = 0;
  Sample sample = One(Ask({1}, 1, 1));
  EXPECT_TRUE(sample.tokens.empty());
  EXPECT_EQ(sample.text, "");
  options_.max_tokens = 1;
  sample = One(Ask({1}, 1, 1));
  EXPECT_EQ(sample.tokens, ByHand(*model_, Ask({1}, 1, 1), 1));
  EXPECT_FALSE(sample.slid);
}

// Equal prompts are read once; each of them says that the window slid.
TEST_F(Text, EverySampleOfALongPromptSaysThatItSlid) {
  options_.max_tokens = 1;
  const std::vector<SampleRequest> requests(3, Ask(RandomTokens(90, 37), 1, 1));
  for (const Sample& sample : Must(Generate(*model_, tokenizer_, requests, options_))) {
    EXPECT_TRUE(sample.slid);
    EXPECT_EQ(sample.tokens, ByHand(*model_, requests[0], 1));
  }
}

// Tokens that fill the window exactly do not slide it: the last one is read from a whole window.
TEST_F(Text, TheWindowSlidesOnlyPastItsEnd) {
  options_.max_tokens = 3;
  for (const int64_t length : {77, 78, 79, 80, 81}) {
    const SampleRequest request = Ask(RandomTokens(length, 37), 1, 1);
    const Sample sample = One(request);
    EXPECT_EQ(sample.tokens, ByHand(*model_, request, 3)) << length;
    EXPECT_EQ(sample.slid, length + 3 > 81) << length;
  }
}

// What is streamed is what is returned, whatever stops it; it never shows what a stop takes back.
TEST_F(Text, StopStringsCutTheTextAndItsTokens) {
  options_.max_tokens = 12;
  const SampleRequest request = Ask({7}, 1, 3);
  const Sample whole = One(request);
  ASSERT_EQ(whole.text.size(), 24u);
  ASSERT_FALSE(whole.stopped);
  struct Case {
    size_t begin, length;  // of the stop string in the text
  };
  // Inside a token, a whole token, spanning two, three, the very first, the last, one byte.
  for (const Case c :
       {Case{7, 1}, {6, 2}, {7, 2}, {5, 5}, {0, 2}, {0, 1}, {1, 1}, {22, 2}, {23, 1}}) {
    options_.stop = {"never", whole.text.substr(c.begin, c.length)};
    const size_t at = whole.text.find(options_.stop[1]);  // may come earlier
    std::string streamed;
    options_.on_text = [&](size_t, std::string_view bytes) {
      streamed += bytes;
      return true;
    };
    const Sample sample = One(request);
    EXPECT_TRUE(sample.stopped) << options_.stop[1];
    EXPECT_EQ(sample.text, whole.text.substr(0, at)) << options_.stop[1];
    EXPECT_EQ(streamed, sample.text) << options_.stop[1];
    // Tokens that begin before the stop.
    EXPECT_EQ(sample.tokens,
              std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + (at + 1) / 2))
        << options_.stop[1];
  }
}

// The beginning of a stop string that never comes is shown in the end.
TEST_F(Text, AHalfStopStringIsText) {
  options_.max_tokens = 6;
  const SampleRequest request = Ask({7}, 1, 3);
  const Sample whole = One(request);
  options_.stop = {whole.text.substr(9) + "#"};
  std::string streamed;
  options_.on_text = [&](size_t, std::string_view bytes) {
    streamed += bytes;
    return true;
  };
  const Sample sample = One(request);
  EXPECT_FALSE(sample.stopped);
  EXPECT_EQ(sample.text, whole.text);
  EXPECT_EQ(streamed, whole.text);
}

// Bytes are tokens: a stop string of several bytes begins in the middle of a character's.
TEST(TextOfBytes, AStopStringMaySpanOrSplitCharacters) {
  ModelConfig config = Mixes()[2].config;
  config.vocab_size = 256;
  const auto model = NoisyModel(config, SimdKernels());
  const ByteTokenizer bytes;
  GenerateOptions options;
  options.max_tokens = 10;
  const SampleRequest request = Ask({'a'}, 1, 5);
  const Sample whole = Must(Generate(*model, bytes, {&request, 1}, options))[0];
  ASSERT_EQ(whole.text.size(), 10u);
  EXPECT_EQ(whole.text, bytes.Decode(whole.tokens));
  options.stop = {whole.text.substr(4, 3)};
  const Sample cut = Must(Generate(*model, bytes, {&request, 1}, options))[0];
  EXPECT_TRUE(cut.stopped);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(options.stop[0])));
}

// A token that ends in the middle of a character, and a stop string that begins there.
TEST(TextOfBytes, ATokenIsCutInsideACharacter) {
  ModelConfig config = Mixes()[2].config;
  config.vocab_size = 2;
  const auto model = NoisyModel(config, SimdKernels());
  // Every text is a row of "xé" and "é": bytes x C3 A9 and C3 A9.
  const ListTokenizer tokenizer({"x\xC3\xA9", "\xC3\xA9"});
  GenerateOptions options;
  options.max_tokens = 8;
  options.stop = {"\xA9x"};
  std::string streamed;
  options.on_text = [&](size_t, std::string_view bytes) {
    streamed += bytes;
    return true;
  };
  int stopped = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    streamed.clear();
    const SampleRequest request = Ask({0}, 1, seed);
    const std::vector<int32_t> free = ByHand(*model, request, 8);
    const std::string text = tokenizer.Decode(free);
    const Sample sample = Must(Generate(*model, tokenizer, {&request, 1}, options))[0];
    const size_t at = text.find(options.stop[0]);
    stopped += at != std::string::npos;
    EXPECT_EQ(sample.stopped, at != std::string::npos);
    EXPECT_EQ(sample.text, text.substr(0, at));
    EXPECT_EQ(streamed, sample.text);
  }
  EXPECT_GT(stopped, 0);
}

TEST_F(Text, TheReaderMayEndTheWork) {
  int calls = 0;
  options_.on_text = [&](size_t, std::string_view) { return ++calls < 37; };
  // 40 requests: 32 decode together. The 37th text is the second token of the fifth.
  const std::vector<SampleRequest> requests(40, Ask({1}, 1, 1));
  const auto samples = Generate(*model_, tokenizer_, requests, options_);
  EXPECT_EQ(calls, 37);
  ASSERT_TRUE(samples) << samples.error().Message();
  ASSERT_EQ(samples->size(), 40u);
  for (size_t r = 0; r < 40; ++r) {
    EXPECT_EQ((*samples)[r].tokens.size(), r < 5 ? 2u : r < 32 ? 1u : 0u) << r;
  }
}

// Embeddings are padded to round sizes: ids without a token are never drawn, as if their logits
// were not there.
TEST_F(Text, OnlyTokensOfTheVocabularyAreDrawn) {
  const ListTokenizer few = Pairs(5);
  options_.max_tokens = 30;
  const SampleRequest request = Ask({1}, 2, 1);
  const Sample sample = Must(Generate(*model_, few, {&request, 1}, options_))[0];
  EXPECT_EQ(sample.tokens.size(), 30u);
  EXPECT_LT(*std::ranges::max_element(sample.tokens), 5);
  EXPECT_EQ(sample.text, few.Decode(sample.tokens));
}

TEST_F(Text, LogitsThatAreNotFiniteAreAnError) {
  model_->parameters().Find("model.norm.weight")->data[0] = HUGE_VALF;
  const SampleRequest request = Ask({1}, 1, 1);
  const auto samples = Generate(*model_, tokenizer_, {&request, 1}, options_);
  ASSERT_FALSE(samples);
  EXPECT_EQ(samples.error().kind, ErrorKind::kNumeric);
}

// ---- What a cache keeps: 2 · layers · key/value heads · head width · positions · rows · 4 bytes

TEST(LessonRow27, TheCacheHoldsTheFormulasBytes) {
  ModelConfig config;
  config.n_layer = 6;
  config.n_head = 6;
  config.n_embd = 192;
  config.vocab_size = 65;
  config.block_size = 256;
  const std::pair<int64_t, size_t> published[] = {
      {6, 2359296}, {3, 1179648}, {2, 786432}, {1, 393216}};
  for (const auto& [heads, bytes] : published) {
    config.n_kv_head = heads;
    config.head_dim = 0;
    ASSERT_TRUE(config.Resolve());
    EXPECT_EQ((*KvCache::Create(config, 1, 256))->bytes(), bytes) << heads;
    EXPECT_EQ((*KvCache::Create(config, 5, 256))->bytes(), 5 * bytes) << heads;
  }
  // stories260K: 5 layers, 8 heads of width 8, half as many for keys and values.
  config.n_layer = 5;
  config.n_head = 8;
  config.n_kv_head = 4;
  config.n_embd = 64;
  config.head_dim = 0;
  ASSERT_TRUE(config.Resolve());
  EXPECT_EQ((*KvCache::Create(config, 1, 512))->bytes(), 655360u);
}

TEST(KvCacheBytes, RowsAreCopiedWhole) {
  const ModelConfig config = Mixes()[2].config;
  const auto model = NoisyModel(config, SimdKernels());
  auto cache = *KvCache::Create(config, 3, 9);
  const auto activations = *Activations::Create(*model, 1, 5, false);
  const std::vector<int32_t> tokens = RandomTokens(5, config.vocab_size);
  Pass pass = model->NewPass(1, 5);
  const auto layers = cache->Extend(2, 1, 5, &pass.offsets);
  model->Forward(pass, tokens.data(), activations.get(), layers);
  cache->CopyRow(2, 0);
  EXPECT_EQ(cache->length(0), 5);
  EXPECT_EQ(cache->length(1), 0);
  const int32_t* offsets = nullptr;
  const auto from = cache->Extend(2, 1, 0, &offsets), to = cache->Extend(0, 1, 0, &offsets);
  const int64_t row = config.n_kv_head * 9 * config.head_dim;
  for (size_t l = 0; l < from.size(); ++l) {
    EXPECT_TRUE(SameBits(from[l].k, to[l].k, row));
    EXPECT_TRUE(SameBits(from[l].v, to[l].v, row));
    EXPECT_NE(from[l].k[0], 0);
  }
}

}  // namespace
}  // namespace heed
