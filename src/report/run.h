// What a run's folder tells: settings, size, curves; and several runs held against each other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "io/metrics.h"
#include "model/config.h"

namespace heed {

struct RunRecord {
  std::string folder;
  std::string name;                                           // the folder's last part
  std::vector<std::pair<std::string, std::string>> settings;  // of config.toml, in its order
  std::vector<std::string> data;                              // what it was trained on
  std::optional<ModelConfig> model;                           // none for n-gram models
  std::vector<MetricsRow> rows;                               // at least one
  int64_t updates = 0;  // that the checkpoint holds; 0 where there is none
};

// Errors: no metrics.jsonl, an empty one, or a damaged file of the folder. A missing config.toml
// leaves no settings.
Result<RunRecord> ReadRun(const std::string& folder);

// Figures of one run.
struct RunFigures {
  int64_t parameters = 0;      // 0 for n-gram models
  int64_t cache_elements = 0;  // of the key/value cache, for each position of a sequence
  int64_t updates = 0;         // 0 for n-gram models, which are counted
  int64_t tokens = 0;
  double train_loss = 0;                // the mean of the last updates: the end of Smoothed()
  std::optional<double> val_loss;       // the last
  std::optional<double> best_val_loss;  // the least
  int64_t best_iter = 0;
  std::optional<double> floor;   // that val_loss cannot pass
  double tokens_per_second = 0;  // median over the logged rows that have it
  double elapsed_s = 0;
};
RunFigures FiguresOf(const RunRecord& run);

// A setting that all runs have and that is not the same in all. Models of other kinds lack some.
struct Difference {
  std::string setting;
  std::vector<std::string> values;  // by run
};
std::vector<Difference> DifferencesOf(std::span<const RunRecord> runs);

// What a run did beside another, in a sentence or two: held-out loss at their ends and after the
// same number of tokens, when it passed the other's last loss, speed, cache.
std::string EffectOf(const RunRecord& run, const RunRecord& other);

}  // namespace heed
