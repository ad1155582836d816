// What a dump of attention does not state, decided in every way that its numbers could tell apart.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/attention_recipe.h"

namespace heed {

struct AttentionConvention {
  AttentionRecipe right;
  AttentionFacts facts;                      // without largest_score and equal_rows
  std::map<std::string, std::string> texts;  // "rope_pairing": "interleaved"
};

// The stated one, or the likeliest, first.
std::vector<AttentionConvention> AttentionConventions(const AttentionDump& dump);

}  // namespace heed
