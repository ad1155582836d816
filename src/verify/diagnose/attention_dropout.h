// Dropout that was live where none should be: its mask is random and cannot be replayed, but it can
// be solved for.
#pragma once

#include <optional>

#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/attention_replay.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// dropout_live_in_eval, when every element of the pattern or of the last result is 0 or one
// constant above 1 times what `recipe` makes; or when the first rows of y follow from weights of
// that kind, which are decided while a row of y has more channels than weights behind it. Then the
// residual speaks of these rows alone, as `detail` says. `replay` is of the dump's case.
std::optional<Explanation> FindLiveDropout(const AttentionDump& dump, const AttentionRecipe& recipe,
                                           double floor, AttentionReplay* replay);

}  // namespace heed
