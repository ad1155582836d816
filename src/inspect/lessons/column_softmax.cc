#include "inspect/lessons/three_tokens.h"

namespace heed {

Result<std::vector<Step>> TellColumnSoftmax(const LessonInput& input) {
  SmallAttentionCase two{{2, 1, {1, 2}}, {2, 1, {1, 3}}, {2, 1, {10, 20}}};
  two.softmax_axis = SoftmaxAxis::kColumn;
  HEED_ASSIGN(std::vector<Step> steps, ExplainSmallAttention(two));
  HEED_ASSIGN(ThreeTokens three, MakeThreeTokens(input));
  three.attention.softmax_axis = SoftmaxAxis::kColumn;
  const int64_t T = three.x.rows;
  HEED_ASSIGN(const SmallAttention masked, ComputeSmallAttention(three.attention));
  three.attention.causal = false;
  HEED_ASSIGN(const SmallAttention open, ComputeSmallAttention(three.attention));
  steps.push_back({"T = 3",
                   "row sums of the lesson three-tokens, causal, wrong axis",
                   "T",
                   {T},
                   masked.row_sums});
  steps.push_back({"T = 3, open",
                   "row sums of the same without a mask",
                   "T",
                   {T},
                   open.row_sums,
                   "All columns sum to 1, so the row sums add up to T, and no single one is 1."});
  return steps;
}

}  // namespace heed
