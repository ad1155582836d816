// Dropout of attention's weights: its mask is random and cannot be replayed, but it can be solved
// for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/attention_replay.h"

namespace heed {

struct SolvedDropout {
  double gain = 1;      // what survives is multiplied by it, 1 / (1 - p) when right
  double residual = 0;  // of what was solved
  int64_t rows = 0;     // so many of the first positions were solved
  std::string where;    // "of the weights, solved for row 0"
  // Of the rows that hold more weights than equations: how likely they are, a logarithm, and
  // whether dropout of the right formula's kind could have made them at all.
  double likelihood = 0;
  bool plausible = true;
};

// How hard weights are searched for.
enum class DropoutEffort : uint8_t {
  kFewWeights,   // rows with hardly more weights than equations
  kManyWeights,  // where there are none such, rows with so many as their digits can decide: slow
};

// When every element of the pattern or of the last result is 0 or one constant times what `recipe`
// makes; or when the first rows of the last result follow from weights of that kind. The constant
// is above 1, or, where the dump states its dropout, that of dropout with or without its scaling.
// `replay` is of the dump's case.
std::optional<SolvedDropout> SolveDropout(const AttentionDump& dump, const AttentionRecipe& recipe,
                                          double floor, AttentionReplay* replay,
                                          DropoutEffort effort);

// The logarithm of how likely dropout of `recipe`'s weights makes the last result, at the best of
// some probabilities, each row taken as a normal one; nothing where that cannot be said.
std::optional<double> DropoutLikelihood(const AttentionDump& dump, const AttentionRecipe& recipe,
                                        double floor, AttentionReplay* replay);

// How many weights of `recipe` would show in the last result if they were dropped, and how likely
// dropout of the stated probability is to drop none of them.
struct NoDrop {
  int64_t weights = 0;
  double chance = 1;
};
NoDrop ChanceOfNoDrop(const AttentionDump& dump, const AttentionRecipe& recipe, double floor,
                      AttentionReplay* replay);

}  // namespace heed
