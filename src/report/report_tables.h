// The tables of a report.
#pragma once

#include <span>
#include <vector>

#include "report/report.h"
#include "report/table.h"

namespace heed {

inline constexpr const char* kMapCaution =
    "A map says where a head looks. It does not explain the output: values, other heads and the "
    "residual path carry the rest, and a head that looks at nothing interesting may matter more "
    "than one that does. The evidence is beside each map: what the loss becomes when that head is "
    "taken away.";

// Name and one line of what it means.
struct ReportSection {
  std::string title, note;
  std::vector<Table> tables;
};

// In the order of the report: figures, samples, heads, shapes, memory, settings.
std::vector<ReportSection> ReportSections(std::span<const ReportedRun> runs);

// What each run reached, then sentences that hold each against the first.
std::vector<std::string> ReportSummary(std::span<const ReportedRun> runs);

}  // namespace heed
