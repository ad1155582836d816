// Everything about runs on one page: curves, samples, settings, shapes, memory, attention.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "eval/ablation.h"
#include "inspect/attention_map.h"
#include "inspect/ledger.h"
#include "report/run.h"
#include "report/samples.h"

namespace heed {

struct ReportRequest {
  std::vector<std::string> prompts;  // none: the prompt that the run sampled from
  std::vector<double> temperatures = {0, 0.7, 1, 1.5};
  int64_t max_tokens = 160;
  std::string text;    // that maps are drawn on; "": the first sample at temperature 0
  bool ablate = true;  // where the run's data is still there
  uint64_t seed = 0;
};

struct ReportedHeads {
  std::vector<std::string> labels;  // of the positions
  AttentionMaps maps;
  std::optional<HeadAblation> ablation;  // on held-out text
  std::string no_ablation;               // why there is none
};

struct ReportedRun {
  RunRecord record;
  std::vector<SheetRow> sheet;
  // Of models with layers.
  std::optional<Ledger> ledger;  // at the run's batch size and context
  std::optional<Ledger> one;     // of one sequence
  std::optional<ReportedHeads> heads;
  int64_t weight_file_bytes = 0;
};

// Errors: as ReadRun, OpenModel and MakeSheet. on_step is told what is being done.
Result<ReportedRun> ReportRun(const std::string& folder, const ReportRequest& request,
                              const std::function<void(const std::string&)>& on_step);

// One page that needs nothing from elsewhere.
std::string ReportHtml(std::span<const ReportedRun> runs);
std::string ReportMarkdown(std::span<const ReportedRun> runs);
// All tables: lines "table,row,column,value".
std::string ReportCsv(std::span<const ReportedRun> runs);

}  // namespace heed
