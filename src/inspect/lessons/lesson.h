// The lessons: what a GPT is made of, at sizes that can be followed by hand. Every number is
// computed by the library's own kernels while the lesson is told.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "inspect/step.h"

namespace heed {

// The reader's own matrices in place of a lesson's, as ParseSmallMatrix reads them; "" for none.
struct LessonInput {
  std::string x, w_q, w_k, w_v;
};

struct Lesson {
  std::string_view name;   // "causal-attention"
  std::string_view title;  // what it is about, a few words
  std::string_view point;  // what to take home, a sentence or two
  Result<std::vector<Step>> (*tell)(const LessonInput& input);
};

// In the order in which they build on each other.
std::span<const Lesson> Lessons();

// Errors (kRequest): no such lesson, with the nearest.
Result<const Lesson*> FindLesson(const std::string& name);

// One file each.
Result<std::vector<Step>> TellMerges(const LessonInput& input);
Result<std::vector<Step>> TellBigram(const LessonInput& input);
Result<std::vector<Step>> TellPreviousToken(const LessonInput& input);
Result<std::vector<Step>> TellTemperature(const LessonInput& input);
Result<std::vector<Step>> TellAveragedContext(const LessonInput& input);
Result<std::vector<Step>> TellSinusoidal(const LessonInput& input);
Result<std::vector<Step>> TellRope(const LessonInput& input);
Result<std::vector<Step>> TellRopeLayouts(const LessonInput& input);
Result<std::vector<Step>> TellScaling(const LessonInput& input);
Result<std::vector<Step>> TellCausalAttention(const LessonInput& input);
Result<std::vector<Step>> TellThreeTokens(const LessonInput& input);
Result<std::vector<Step>> TellColumnSoftmax(const LessonInput& input);
Result<std::vector<Step>> TellMergingHeads(const LessonInput& input);
Result<std::vector<Step>> TellGroupedHeads(const LessonInput& input);
Result<std::vector<Step>> TellSlidingWindow(const LessonInput& input);
Result<std::vector<Step>> TellCacheOffset(const LessonInput& input);
Result<std::vector<Step>> TellDropout(const LessonInput& input);

}  // namespace heed
