// The accepted numbers of each lesson: published, or computed by hand or in float64 elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "inspect/lessons/lesson.h"
#include "inspect/small_attention.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

std::vector<Step> Tell(const std::string& name, const LessonInput& input = {}) {
  const Result<const Lesson*> lesson = FindLesson(name);
  EXPECT_TRUE(lesson);
  Result<std::vector<Step>> steps = (*lesson)->tell(input);
  EXPECT_TRUE(steps);
  return *steps;
}

// The step of that name, the `nth` of several.
Step Find(const std::vector<Step>& steps, const std::string& name, int nth = 0) {
  for (const Step& step : steps) {
    if (step.name == name && nth-- == 0) return step;
  }
  ADD_FAILURE() << "no step " << name;
  return {};
}

void ExpectNear(const Step& step, const Numbers& want, double bound) {
  ASSERT_EQ(step.values.size(), want.size()) << step.name;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(step.values[i], want[i], bound) << step.name << " " << i;
  }
}

TEST(Lessons, EveryStepHasAFormulaAndNumbersOfItsShape) {
  std::set<std::string_view> names;
  for (const Lesson& lesson : Lessons()) {
    EXPECT_TRUE(names.insert(lesson.name).second);
    const std::vector<Step> steps = Tell(std::string(lesson.name));
    EXPECT_GE(steps.size(), 2u);
    for (const Step& step : steps) {
      EXPECT_FALSE(step.formula.empty()) << step.name;
      size_t elements = 1, words = step.axes.empty() ? 0 : 1;
      for (const int64_t size : step.shape) elements *= static_cast<size_t>(size);
      for (const char c : step.axes) words += c == ' ';
      EXPECT_EQ(step.values.size(), elements) << lesson.name << " " << step.name;
      EXPECT_EQ(words, step.shape.size()) << lesson.name << " " << step.name;
      if (step.shape.empty()) continue;
      const auto columns = static_cast<size_t>(step.shape.back());
      if (!step.columns.empty()) {
        EXPECT_EQ(step.columns.size(), columns) << step.name;
      }
      if (!step.rows.empty()) {
        EXPECT_EQ(step.rows.size(), elements / columns) << step.name;
      }
    }
  }
}

TEST(Lessons, AnUnknownNameIsRefusedWithTheNearest) {
  const auto lesson = FindLesson("bigrams");
  ASSERT_FALSE(lesson);
  EXPECT_EQ(lesson.error().hint, "did you mean bigram?");
}

// The course writes the words as low </w> and low e r </w>; here the space stands in front.
TEST(LessonRow01, Merges) {
  const std::vector<Step> steps = Tell("merges");
  ExpectNear(Find(steps, "bytes"), {3, 4, 6}, 0);
  EXPECT_EQ(Find(steps, "merge 1").note, "lo w | _ lo w | _ lo w e r");
  EXPECT_EQ(Find(steps, "merge 2").note, "low | _ low | _ low e r");
  ExpectNear(Find(steps, "merge 2"), {1, 2, 4}, 0);
  const Step pairs = Find(steps, "pairs");
  EXPECT_EQ(pairs.columns, (std::vector<std::string>{"_ l", "e r", "l o", "o w", "w e"}));
  ExpectNear(pairs, {2, 1, 3, 3, 1}, 0);
  ExpectNear(Find(steps, "GPT-2"), {256, 50000, 1, 50257}, 0);
}

TEST(LessonRow02, Bigram) {
  const std::vector<Step> steps = Tell("bigram");
  const Step p = Find(steps, "probability");
  const auto at = [&](const Step& step, int row, int column) {
    return step.values[row * 6 + column];
  };
  EXPECT_NEAR(at(p, 1, 2), 1.0, 1e-12);  // am given I
  EXPECT_NEAR(at(p, 2, 3), 0.5, 1e-12);  // Sam given am
  EXPECT_EQ(at(p, 1, 3), 0.0);           // Sam given I was never seen
  const Numbers hot = Find(steps, "temperature").values;
  EXPECT_EQ(hot, (Numbers{0, 0, 0, 0.5, 0.5, 0}));
}

TEST(LessonRow03, PreviousToken) {
  const std::vector<Step> steps = Tell("previous-token");
  ExpectNear(Find(steps, "logits"), {0, 2, 1}, 0);
  ExpectNear(Find(steps, "softmax"), {0.09003, 0.66524, 0.24473}, 5e-6);
  ExpectNear(Find(steps, "loss"), {1.40761}, 5e-6);
  ExpectNear(Find(steps, "dlogits"), {0.09003, 0.66524, -0.75527}, 5e-6);
  ExpectNear(Find(steps, "dv"), {0.57521, -0.75527}, 5e-6);
  // dU is the outer product with v = [1, 0].
  ExpectNear(Find(steps, "dU"), {0.09003, 0, 0.66524, 0, -0.75527, 0}, 5e-6);
}

TEST(LessonRow04, Temperature) {
  const std::vector<Step> steps = Tell("temperature");
  ExpectNear(Find(steps, "T = 1"), {0.6652, 0.2447, 0.0900}, 5e-5);
  ExpectNear(Find(steps, "T = 0.5"), {0.8668, 0.1173, 0.0159}, 5e-5);
  ExpectNear(Find(steps, "T = 2"), {0.5065, 0.3072, 0.1863}, 5e-5);
  ExpectNear(Find(steps, "T = 0"), {1, 0, 0}, 0);
}

TEST(LessonRow05, AveragedContext) {
  const std::vector<Step> steps = Tell("averaged-context");
  for (const char* name : {"mean", "trap"}) {
    const Numbers rows = Find(steps, name).values;
    for (size_t c = 8; c < 12; ++c) EXPECT_EQ(rows[c], 0.0) << name;
  }
  // The trap's vectors do differ from the plain ones.
  EXPECT_GT(std::abs(Find(steps, "trap").values[0] - Find(steps, "mean").values[0]), 0.1);
  // 0.2 dog + 0.3 bites + 0.5 man, by hand.
  const Step by_position = Find(steps, "by position");
  EXPECT_NEAR(by_position.values[0], -0.3, 1e-12);
  EXPECT_NEAR(by_position.values[8], -0.6, 1e-12);
  EXPECT_GT(std::abs(Find(steps, "by query").values[8]), 0.1);
}

TEST(LessonRow06, Sinusoidal) {
  const std::vector<Step> steps = Tell("sinusoidal");
  const Numbers table = Find(steps, "PE").values;
  const Numbers first(table.begin(), table.begin() + 8);
  ExpectNear({"PE", "", "", {}, first}, {0, 1, 0, 1, 0.841471, 0.540302, 0.0099998, 0.99995}, 5e-7);
  ExpectNear(Find(steps, "products"), Numbers(6, 1.964889526), 5e-7);
}

TEST(LessonRow07, RopeAsARotation) {
  const std::vector<Step> steps = Tell("rope");
  ExpectNear(Find(steps, "norms"), Numbers(4, 1.0), 1e-15);
  ExpectNear(Find(steps, "angle"), {-0.1329, 1.2737}, 5e-5);
  EXPECT_LT(Find(steps, "difference").values[0], 1e-15);
  // R(2) turns by 2 and by 0.02 radians.
  const Numbers direct = Find(steps, "direct").values;
  EXPECT_NEAR(direct[0], std::cos(2.0), 1e-15);
  EXPECT_NEAR(direct[14], std::sin(0.02), 1e-15);
}

// Computed in float64 elsewhere.
TEST(LessonRow07, TheBoundFallsWithDistance) {
  ExpectNear(Find(Tell("rope"), "decay"),
             {32.5, 20.8, 18.0, 12.6, 10.2, 7.6, 6.5, 16.5, 10.4, 8.8, 5.7, 7.5, 4.2, 3.7}, 0.0501);
}

TEST(LessonRow23, ScoresAtNinetyDegreesAStep) {
  const Step scores = Find(Tell("rope"), "scores");
  ExpectNear(scores, {1, 0, -1, -1, -1}, 1e-13);
}

TEST(LessonRow07, RopeLayouts) {
  const std::vector<Step> steps = Tell("rope-layouts");
  const Numbers origin = Find(steps, "origin").values;
  const Numbers vectors = Find(steps, "vectors").values;
  const Numbers pairing = Find(steps, "pairing").values;
  for (size_t s = 0; s < 4; ++s) EXPECT_NEAR(origin[s], origin[4 + s], 1e-13);
  EXPECT_GT(std::abs(vectors[0] - vectors[4]), 1.0);
  // At distance 0 both are q·k = 0.5 - 2 + 6 + 4; two steps away the layouts disagree.
  EXPECT_NEAR(pairing[3], 8.5, 1e-13);
  EXPECT_NEAR(pairing[7], 8.5, 1e-13);
  EXPECT_GT(std::abs(pairing[0] - pairing[4]), 1.0);
}

TEST(LessonRow08, Scaling) {
  const Numbers deviations = Find(Tell("scaling"), "deviation").values;
  const double widths[] = {2, 16, 64, 256};
  for (size_t i = 0; i < 4; ++i) {
    // Five standard errors of a deviation out of 20,000 draws; at d = 2 the kurtosis is 6.
    EXPECT_NEAR(deviations[2 * i] / std::sqrt(widths[i]), 1, 0.04);
    EXPECT_NEAR(deviations[2 * i + 1], 1, 0.04);
  }
}

TEST(LessonRow09, CausalAttentionOnTwoTokens) {
  const std::vector<Step> steps = Tell("causal-attention");
  ExpectNear(Find(steps, "products"), {1, 3, 2, 6}, 0);
  const Numbers scores = Find(steps, "scores").values;
  EXPECT_EQ(scores, (Numbers{1, -INFINITY, 2, 6}));
  const Step pattern = Find(steps, "pattern");
  EXPECT_EQ(pattern.values[1], 0.0);
  ExpectNear(pattern, {1, 0, 0.017986, 0.982014}, 5e-7);
  ExpectNear(Find(steps, "output"), {10, 19.820138}, 5e-7);
  ExpectNear(Find(steps, "unmasked"), {18.807971, 19.820138}, 5e-7);
  ExpectNear(Find(steps, "leak"), {0}, 0);
}

TEST(LessonRow10, ThreeTokens) {
  const std::vector<Step> steps = Tell("three-tokens");
  ExpectNear(Find(steps, "A, no mask"), {.401, .401, .198, .198, .401, .401, .248, .503, .248},
             5e-4);
  ExpectNear(Find(steps, "Z, no mask"), {1.000, 1.401, .797, 1.604, .745, 1.759}, 5e-4);
  ExpectNear(Find(steps, "pattern"), {1, 0, 0, .330, .670, 0, .248, .503, .248}, 5e-4);
  ExpectNear(Find(steps, "output"), {2, 0, .660, 2.009, .745, 1.759}, 5e-4);
}

TEST(LessonRow10, TakesTheReadersMatrices) {
  LessonInput input;
  input.x = "1;2";
  input.w_q = input.w_k = "1";
  input.w_v = "3,4";
  const std::vector<Step> steps = Tell("three-tokens", input);
  EXPECT_EQ(Find(steps, "V").values, (Numbers{3, 4, 6, 8}));
  // Scores 2·1 and 2·2: the weights are 1 / (1 + e^2) and its complement.
  const double far = 1 / (1 + std::exp(2.0));
  ExpectNear(Find(steps, "output"), {3, 4, 6 - 3 * far, 8 - 4 * far}, 1e-12);
  input.w_k = "1,2";
  const auto wide = (*FindLesson("three-tokens"))->tell(input);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().where, "--w-k");
  input.w_k = "1;2";
  const auto tall = (*FindLesson("three-tokens"))->tell(input);
  ASSERT_FALSE(tall);
  EXPECT_EQ(tall.error().Message(),
            "--w-k: found 2 rows, expected 1, the width of --x; each row of x is multiplied with "
            "the columns of the weight");
}

TEST(LessonRow11, ColumnSoftmax) {
  const std::vector<Step> steps = Tell("column-softmax");
  ExpectNear(Find(steps, "row sums"), {0.268941, 1.731059}, 5e-7);
  ExpectNear(Find(steps, "output"), {2.689, 27.311}, 5e-4);
  ExpectNear(Find(steps, "T = 3"), {.401, .528, 2.071}, 5e-4);
  ExpectNear(Find(steps, "T = 3, open"), {.847, .847, 1.306}, 5e-4);
  EXPECT_GT(Find(steps, "leak").values[0], 1.0);
}

TEST(LessonRow12, MergingHeads) {
  const std::vector<Step> steps = Tell("merging-heads");
  EXPECT_EQ(Find(steps, "merged").values, (Numbers{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
  EXPECT_EQ(Find(steps, "source").values, (Numbers{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(Find(steps, "reshaped").values, (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(Find(steps, "source", 1).values, (Numbers{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST(LessonRow17, GroupedHeads) {
  const std::vector<Step> steps = Tell("grouped-heads");
  EXPECT_EQ(Find(steps, "GQA").values,
            (Numbers{1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(Find(steps, "GQA", 1).values, (Numbers{1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(Find(steps, "MQA").values, Numbers(6, 1.0));
  const Numbers own = Find(steps, "MHA").values;
  for (size_t i = 0; i < 36; ++i) EXPECT_EQ(own[i], i % 7 == 0 ? 1 : 0);
}

TEST(LessonRow30, SlidingWindow) {
  const std::vector<Step> steps = Tell("sliding-window");
  const Numbers mask = Find(steps, "mask").values;
  for (int t = 0; t < 6; ++t) {
    for (int s = 0; s < 6; ++s) EXPECT_EQ(mask[t * 6 + s], s <= t && s >= t - 2 ? 1 : 0);
  }
  EXPECT_EQ(Find(steps, "keys seen").values, (Numbers{1, 2, 3, 3, 3, 3}));
  // N (N + 1) / 2, and 3 N - 3.
  EXPECT_EQ(Find(steps, "work").values, (Numbers{21, 15, 78, 33, 300, 69, 1176, 141, 4656, 285}));
}

TEST(LessonRow24, CacheOffset) {
  const std::vector<Step> steps = Tell("cache-offset");
  for (const double difference : Find(steps, "cached pass").values) EXPECT_LT(difference, 1e-14);
  EXPECT_GT(Find(steps, "restarted").values[0], 0.1);
  // [1, 1] turned by 2 radians.
  const Numbers next = Find(steps, "next").values;
  EXPECT_NEAR(next[0], std::cos(2.0) - std::sin(2.0), 1e-15);
  EXPECT_NEAR(next[1], std::sin(2.0) + std::cos(2.0), 1e-15);
  EXPECT_EQ(next[2], 1.0);
  EXPECT_EQ(Find(steps, "mask").values, (Numbers{1, 1, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(Find(steps, "wrong mask").values, (Numbers{1, 0, 0, 0, 1, 1, 0, 0}));
}

TEST(LessonRow25, DropoutModes) {
  const std::vector<Step> steps = Tell("dropout");
  const Numbers calls = Find(steps, "calls").values;
  EXPECT_EQ(calls[0], 0.0);
  EXPECT_EQ(calls[1], 0.0);
  for (size_t i = 2; i < 6; ++i) EXPECT_GT(calls[i], 0.5) << i;
  // Five standard errors: a number of size x kept half the time and doubled deviates by x.
  const Numbers means = Find(steps, "means").values;
  for (size_t i = 4; i < 12; ++i) {
    EXPECT_NEAR(means[i], means[i % 4], means[i % 4] * 5 / std::sqrt(2000.0)) << i;
  }
}

TEST(SmallAttention, AChunkBehindACacheIsAlignedAtTheLastKey) {
  SmallAttentionCase c{{1, 1, {1}}, {3, 1, {0, 0, 0}}, {3, 2, {1, 0, 2, 0, 6, 3}}};
  EXPECT_EQ(ComputeSmallAttention(c)->scores, (Numbers{0, 0, 0}));
  const Numbers output = ComputeSmallAttention(c)->output;
  EXPECT_NEAR(output[0], 3, 1e-15);
  EXPECT_NEAR(output[1], 1, 1e-15);
}

TEST(SmallAttention, WrongMatricesAreRefusedInOneLine) {
  for (const char* text : {"", " ", "1,2;3", "1,x", "nan", "inf", "1;;2", "1,", "1e999", "1\n2"}) {
    const auto matrix = ParseSmallMatrix("--q", text);
    ASSERT_FALSE(matrix) << text;
    EXPECT_EQ(matrix.error().where, "--q");
    EXPECT_EQ(matrix.error().Message().find('\n'), std::string::npos) << text;
  }
  const SmallMatrix spaced = *ParseSmallMatrix("--q", " 1, -2.5 ;3 ,4e1 ");
  EXPECT_EQ(spaced.rows, 2);
  EXPECT_EQ(spaced.values, (Numbers{1, -2.5, 3, 40}));

  const SmallMatrix one{1, 1, {1}}, two{2, 1, {1, 2}}, wide{1, 2, {1, 2}};
  EXPECT_EQ(ComputeSmallAttention({one, wide, one}).error().where, "--k");
  EXPECT_EQ(ComputeSmallAttention({one, one, two}).error().where, "--v");
  EXPECT_EQ(ComputeSmallAttention({two, one, one}).error().where, "--q");
  EXPECT_TRUE(ComputeSmallAttention({two, one, one, /*causal=*/false}));
}

}  // namespace
}  // namespace heed
