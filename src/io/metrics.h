// metrics.jsonl of a run: one JSON object a line, one line for each logged iteration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace heed {

struct MetricsRow {
  int64_t iter = 0;
  int64_t tokens = 0;     // seen in training so far
  double train_loss = 0;  // nats per token
  double perplexity = 0;  // exp(train_loss)
  std::optional<double> val_loss, val_perplexity;
  std::optional<double> val_bits_per_byte;
  std::optional<double> val_floor;  // what val_loss cannot fall below, where it is known
  double lr = 0;
  double grad_norm = 0;
  double tokens_per_second = 0;
  double elapsed_s = 0;
};

// The line of one row, with its newline. A number that is not finite is written as null.
std::string MetricsLine(const MetricsRow& row);

// Reads the rows of a file. Null reads as NaN; a missing perplexity is exp of its loss; other
// numbers but iter and train_loss may be missing, unknown keys are passed over. When iterations
// step back (a run resumed from an older checkpoint), the later rows replace the earlier. A last
// line without its newline that is no whole object was cut when the run was killed: it is ignored.
// Errors: kIo from opening, kFormat naming file and line.
Result<std::vector<MetricsRow>> ReadMetrics(const std::string& path);

// The same from text; `name` stands for the file in errors.
Result<std::vector<MetricsRow>> ParseMetrics(std::string_view text, const std::string& name);

}  // namespace heed
