// The example of three tokens: x [T, C] and three weights [C, d_k].
#pragma once

#include "base/status.h"
#include "inspect/lessons/lesson.h"
#include "inspect/small_attention.h"

namespace heed {

struct ThreeTokens {
  SmallMatrix x, w_q, w_k, w_v;
  SmallAttentionCase attention;  // q = x W_q and so on; causal
};

// From the input, with the lesson's own matrices where there are none. Errors (kRequest): typed
// matrices that are malformed or do not fit each other.
Result<ThreeTokens> MakeThreeTokens(const LessonInput& input);

}  // namespace heed
