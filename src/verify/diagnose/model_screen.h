// What is seen of a recipe in the first tokens of a dump of a model, long before a whole replay.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "verify/diagnose/model_replay.h"

namespace heed {

// Bounds below the residual of a recipe's logits, each from more rows than the one before: those of
// the first tokens of the first sequence, which by most recipes need no others, and of them the
// columns where `right` misses theirs most. `theirs` [B, T, V]; `replay` must outlive the bounds
// and look nowhere else.
std::vector<std::function<double(const ModelRecipe&)>> BoundsOf(ModelReplay* replay,
                                                                const ModelInput& input,
                                                                const std::vector<double>& theirs,
                                                                const ModelRecipe& right);

}  // namespace heed
