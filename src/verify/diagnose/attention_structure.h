// What is right and what the error looks like, when no name fits.
#pragma once

#include <string>
#include <vector>

#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/search.h"

namespace heed {

// Sentences about their last result against ours: which heads, batch rows and channels agree,
// whether one is the other scaled, shifted, permuted or rotated, and what that rules out.
std::vector<std::string> StructureOfError(const AttentionDump& dump,
                                          const std::vector<double>& ours, double floor);

}  // namespace heed
