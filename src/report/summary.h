// What runs reached, in a few words and in tables.
#pragma once

#include <span>
#include <string>

#include "report/run.h"
#include "report/table.h"

namespace heed {

// What is said first of a run: "held-out loss 0.2877 (perplexity 1.333)".
std::string HeldOutText(double loss);

// The settings that are not the same in all runs.
Table DifferenceTable(std::span<const RunRecord> runs);
// What each run reached: sizes, losses, perplexities, speed, time.
Table FigureTable(std::span<const RunRecord> runs);

}  // namespace heed
