#include "baseline/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "baseline/open.h"
#include "infer/sampler.h"
#include "io/safetensors.h"
#include "support/shell.h"
#include "text/char_tokenizer.h"

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Ngram Counted(const NgramSettings& settings, int64_t vocab_size,
              const std::vector<std::vector<int32_t>>& texts) {
  Ngram model(settings, vocab_size);
  for (const auto& text : texts) model.Count(text);
  model.Estimate();
  return model;
}

double P(const Ngram& model, std::vector<int32_t> context, int32_t next) {
  return model.Probability(context, next);
}

// <s> I am Sam </s>, <s> I am here </s>
enum : int32_t { kStart, kI, kAm, kSam, kEnd, kHere, kWords };
const std::vector<std::vector<int32_t>> kSentences = {{kStart, kI, kAm, kSam, kEnd},
                                                      {kStart, kI, kAm, kHere, kEnd}};

TEST(LessonRow02, BigramsByCounting) {
  const Ngram model = Counted({2, Smoothing::kNone}, kWords, kSentences);
  EXPECT_EQ(P(model, {kI}, kAm), 1);
  EXPECT_EQ(P(model, {kAm}, kSam), 0.5);
  EXPECT_EQ(P(model, {kAm}, kHere), 0.5);
  EXPECT_EQ(P(model, {kSam}, kHere), 0);
  EXPECT_EQ(model.Loss(std::vector<int32_t>{kSam, kHere}), kInfinity);
  EXPECT_DOUBLE_EQ(model.Loss(kSentences[0]), std::log(2));
  EXPECT_TRUE(model.ContextSeen(std::vector<int32_t>{kSam}));
  EXPECT_FALSE(model.ContextSeen(std::vector<int32_t>{kEnd}));
}

TEST(LessonRow02, NoTemperatureBringsAnUnseenPairBack) {
  const Ngram model = Counted({2, Smoothing::kNone}, kWords, kSentences);
  std::vector<float> log_p(kWords);
  model.LogProbabilities(std::vector<int32_t>{kAm}, log_p);
  for (const double temperature : {0.0, 0.1, 1.0, 100.0}) {
    const auto p = SamplingProbabilities({.temperature = temperature}, log_p, {});
    EXPECT_EQ(p[kI], 0) << temperature;
    EXPECT_NEAR(p[kSam] + p[kHere], 1, 1e-12) << temperature;
  }
}

// 0 1 0 1 0 2: c(01) = 2, c(10) = 2, c(02) = 1, so the discount of pairs is 1 / (1 + 2·2) = 1/5.
const std::vector<std::vector<int32_t>> kShort = {{0, 1, 0, 1, 0, 2}};

TEST(Ngram, KneserNeyByHand) {
  const Ngram model = Counted({2, Smoothing::kKneserNey}, 3, kShort);
  // Each token follows one kind of token: 1/3 each, whatever their counts.
  EXPECT_NEAR(P(model, {}, 0), 1.0 / 3, 1e-12);
  EXPECT_NEAR(P(model, {0}, 1), (2 - 0.2 + 0.2 * 2 / 3) / 3, 1e-12);
  EXPECT_NEAR(P(model, {0}, 2), (1 - 0.2 + 0.2 * 2 / 3) / 3, 1e-12);
  EXPECT_NEAR(P(model, {0}, 0), 0.2 * 2 / 3 / 3, 1e-12);
  // Nothing ever followed 2.
  EXPECT_EQ(P(model, {2}, 1), P(model, {}, 1));
}

TEST(Ngram, BackoffByHand) {
  const Ngram model = Counted({2, Smoothing::kBackoff}, 3, kShort);
  EXPECT_NEAR(P(model, {}, 0), 3.0 / 6, 1e-12);
  EXPECT_NEAR(P(model, {0}, 1), 1.8 / 3, 1e-12);
  EXPECT_NEAR(P(model, {0}, 2), 0.8 / 3, 1e-12);
  EXPECT_NEAR(P(model, {0}, 0), 0.4 / 3, 1e-12);
  // After 1 only 0 came: c = 2, so 0.2 of 2 is left, by the shorter counts 2/6 and 1/6.
  EXPECT_NEAR(P(model, {1}, 1), 0.1 * 2 / 3, 1e-12);
  EXPECT_NEAR(P(model, {1}, 2), 0.1 * 1 / 3, 1e-12);
}

TEST(Ngram, AddKByHand) {
  const Ngram model = Counted({2, Smoothing::kAddK, 0.5}, 3, kShort);
  EXPECT_NEAR(P(model, {0}, 1), 2.5 / 4.5, 1e-12);
  EXPECT_NEAR(P(model, {0}, 0), 0.5 / 4.5, 1e-12);
  EXPECT_NEAR(P(model, {2}, 0), 1.0 / 3, 1e-12);
}

std::vector<int32_t> AnyText(int64_t vocab_size, int most) {
  const auto size = *rc::gen::inRange(1, most);
  return *rc::gen::container<std::vector<int32_t>>(
      size, rc::gen::inRange<int32_t>(0, static_cast<int32_t>(vocab_size)));
}

TEST(Ngram, EverySmoothingIsADistribution) {
  EXPECT_TRUE(rc::check([] {
    const int64_t V = *rc::gen::inRange(1, 7);
    const auto smoothing = *rc::gen::element(Smoothing::kNone, Smoothing::kAddK,
                                             Smoothing::kBackoff, Smoothing::kKneserNey);
    const NgramSettings settings{*rc::gen::inRange<int64_t>(1, 5), smoothing};
    const Ngram model = Counted(settings, V, {AnyText(V, 60), AnyText(V, 8)});
    const std::vector<int32_t> context = AnyText(V, 7);
    double sum = 0;
    for (int32_t token = 0; token < V; ++token) {
      const double p = model.Probability(context, token);
      RC_ASSERT(p >= -1e-12 && p <= 1 + 1e-12);
      sum += p;
    }
    RC_ASSERT(std::abs(sum - 1) < 1e-9);
  }));
}

TEST(Ngram, CountingInPiecesIsCountingAtOnce) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<int32_t> text = AnyText(4, 50);
    const NgramSettings settings{3, Smoothing::kKneserNey};
    const Ngram whole = Counted(settings, 4, {text});
    Ngram pieces(settings, 4);
    const auto cut = *rc::gen::inRange<size_t>(0, text.size());
    pieces.Count(std::span(text).first(cut));
    const size_t context = std::min<size_t>(cut, 2);
    pieces.Count(std::span(text).subspan(cut - context), static_cast<int64_t>(context));
    pieces.Estimate();
    for (int32_t a = 0; a < 4; ++a) {
      for (int32_t b = 0; b < 4; ++b) RC_ASSERT(P(whole, {a, b}, a) == P(pieces, {a, b}, a));
    }
  }));
}

struct SavedNgram {
  TemporaryFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = *CharTokenizer::FromText("abc");
  Ngram model = Counted({3, Smoothing::kBackoff}, 3, {{0, 1, 0, 1, 2, 0, 2, 2}});
};

TEST(Ngram, IsTheSameFromItsFolder) {
  SavedNgram saved;
  ASSERT_TRUE(saved.model.Save(saved.folder.path(), *saved.tokenizer, true));
  const auto opened = OpenModel(saved.folder.path(), SimdKernels());
  ASSERT_TRUE(opened) << opened.error().Message();
  ASSERT_EQ(opened->gpt, nullptr);
  for (int32_t a = 0; a < 3; ++a) {
    std::vector<float> want(3), got(3);
    const std::vector<int32_t> context = {a, 2};
    saved.model.LogProbabilities(context, want);
    opened->predictor->LogProbabilities(context, got);
    EXPECT_EQ(want, got);
  }
}

TEST(Ngram, RefusesCountsThatAreOfNoText) {
  SavedNgram saved;
  ASSERT_TRUE(saved.model.Save(saved.folder.path(), *saved.tokenizer, true));
  const auto refusal = [&](std::vector<int32_t> pairs, int64_t count) {
    const std::vector<int32_t> single = {0, 1, 2}, triple = {0, 1, 0};
    const std::vector<int64_t> counts = {count, 1, 1};
    const std::vector<TensorToWrite> tensors = {{"tokens.1", DType::kI32, {3, 1}, single.data()},
                                                {"counts.1", DType::kI64, {3}, counts.data()},
                                                {"tokens.2", DType::kI32, {1, 2}, pairs.data()},
                                                {"counts.2", DType::kI64, {1}, counts.data()},
                                                {"tokens.3", DType::kI32, {1, 3}, triple.data()},
                                                {"counts.3", DType::kI64, {1}, counts.data()}};
    EXPECT_TRUE(WriteSafetensors(saved.folder / "model.safetensors", tensors, {}, true));
    const auto loaded = Ngram::Load(saved.folder.path());
    return loaded ? "" : loaded.error().Message();
  };
  EXPECT_EQ(refusal({1, 0}, 1), "");
  EXPECT_THAT(refusal({0, 1}, 1), testing::HasSubstr("tokens.3: found run 0 without its last 2"));
  EXPECT_THAT(refusal({1, 3}, 1), testing::HasSubstr("tokens.2: found a token outside"));
  EXPECT_THAT(refusal({1, 0}, 0), testing::HasSubstr("counts.1: found a count out of range"));
  WriteText(saved.folder / "config.json",
            R"({"model":"ngram","order":99,"smoothing":"none","add_k":1,"vocab_size":3})");
  EXPECT_THAT(refusal({1, 0}, 1), testing::HasSubstr("order: found 99, expected 1 to 16"));
}

}  // namespace
}  // namespace heed
