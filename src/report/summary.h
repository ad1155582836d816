// The tables that compare runs.
#pragma once

#include <span>

#include "report/run.h"
#include "report/table.h"

namespace heed {

// The settings that are not the same in all runs.
Table DifferenceTable(std::span<const RunRecord> runs);
// What each run reached: sizes, losses, perplexities, speed, time.
Table FigureTable(std::span<const RunRecord> runs);

}  // namespace heed
