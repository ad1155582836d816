#include "inspect/lessons/lesson.h"
#include "inspect/small_attention.h"

namespace heed {

Result<std::vector<Step>> TellCausalAttention(const LessonInput&) {
  SmallAttentionCase example{{2, 1, {1, 2}}, {2, 1, {1, 3}}, {2, 1, {10, 20}}};
  HEED_ASSIGN(std::vector<Step> steps, ExplainSmallAttention(example));
  example.causal = false;
  HEED_ASSIGN(const SmallAttention open, ComputeSmallAttention(example));
  steps.push_back({"unmasked",
                   "Z = A V, had the mask been forgotten",
                   "T d_v",
                   {2, 1},
                   open.output,
                   "The first token now mixes in the second: that is the answer leaking.",
                   {"z0", "z1"}});
  return steps;
}

}  // namespace heed
