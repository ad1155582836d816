#include "inspect/lessons/lesson.h"

#include <algorithm>

#include "base/nearest.h"

namespace heed {

std::span<const Lesson> Lessons() {
  static constexpr Lesson kLessons[] = {
      {"merges", "two merges of byte-pair encoding",
       "A vocabulary is learnt: the pair of neighbours that stands there most often becomes one "
       "token, again and again.",
       TellMerges},
      {"bigram", "a language model by counting pairs",
       "Counting gives a model without training, and nothing but what was counted: a pair that was "
       "never seen stays impossible at every temperature.",
       TellBigram},
      {"previous-token", "a model of the previous token with two matrices, and its gradient",
       "The gradient of the logits is softmax minus one-hot; all other gradients follow from it.",
       TellPreviousToken},
      {"temperature", "what temperature does to a distribution",
       "Below 1 it sharpens, above 1 it flattens, and 0 is greedy choice, not a division.",
       TellTemperature},
      {"averaged-context", "the mean of the context, and why positions do not save it",
       "A mean forgets order, and the mean of sums is the sum of means: order appears only when "
       "the weights depend on position or query.",
       TellAveragedContext},
      {"sinusoidal", "positions as sines and cosines",
       "The product of two position vectors depends on their distance alone.", TellSinusoidal},
      {"rope", "rotary positions with 90 degrees a step",
       "A rotation keeps lengths, and a score depends on the difference of positions alone.",
       TellRope},
      {"rope-layouts", "both pairings of channels, and counting from 0 or 1",
       "The pairing is part of the weights; the origin is a convention that no score can see.",
       TellRopeLayouts},
      {"scaling", "why scores are divided by sqrt(d_k)",
       "Products of random vectors spread like sqrt(d_k); unscaled, the softmax is all but a "
       "single choice.",
       TellScaling},
      {"causal-attention", "attention on two tokens",
       "The first token sees itself alone; hidden scores are -inf, so their weights are exactly 0.",
       TellCausalAttention},
      {"three-tokens", "attention from x and three weights, T = 3 and d_k = 2",
       "Shapes that fit prove little; follow the numbers. --x --w-q --w-k --w-v take your own.",
       TellThreeTokens},
      {"column-softmax", "the softmax along the wrong axis",
       "Every shape fits, a loss may even fall, but rows do not sum to 1 and the last query leaks "
       "into every earlier row in spite of the mask.",
       TellColumnSoftmax},
      {"merging-heads", "merging heads with and without moving axes",
       "A reshape keeps the count of elements and mixes positions: heads must move behind "
       "positions first.",
       TellMergingHeads},
      {"grouped-heads", "which query head reads which key head",
       "Query head h reads key/value head floor(h / g), g = n_head / n_kv_head: neighbours share.",
       TellGroupedHeads},
      {"sliding-window", "attention to a few last keys",
       "Each row sees w/2 + 1 keys, itself the last: work grows with N w in place of N^2.",
       TellSlidingWindow},
      {"cache-offset", "the next token behind a cache",
       "With two cached positions the next token is at position 2, and its mask is aligned at the "
       "bottom right.",
       TellCacheOffset},
      {"dropout", "dropout in training and in evaluation",
       "Evaluation repeats itself exactly; training does not, in one place or the other.",
       TellDropout}};
  return kLessons;
}

Result<const Lesson*> FindLesson(const std::string& name) {
  std::vector<std::string> known;
  for (const Lesson& lesson : Lessons()) {
    if (lesson.name == name) return &lesson;
    known.emplace_back(lesson.name);
  }
  const std::string nearest = NearestName(name, known);
  return BadRequest("LESSON", "'" + name + "'", "a lesson's name",
                    nearest.empty() ? "see heed lesson" : "did you mean " + nearest + "?");
}

}  // namespace heed
