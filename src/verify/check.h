// The diagnosis of a model: one question after another, from shapes to training, each answered by
// a number and a bound. The order matters: what an earlier check finds explains what later ones
// see.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"

namespace heed {

enum class CheckVerdict { kOk, kFailed, kSkipped };

std::span<const EnumName<CheckVerdict>> EnumNames(CheckVerdict);

struct CheckResult {
  std::string_view name;
  std::string_view tried;
  std::string_view rules_out;
  std::string_view look;  // where to look when it failed
  CheckVerdict verdict = CheckVerdict::kSkipped;
  double value = 0, bound = 0;  // failed when not value <= bound; NaN when skipped
  std::string note;             // why it was skipped, or what else was seen; may be empty
};

struct CheckReport {
  std::string scope;  // what part of the model was run, with its sizes
  std::vector<CheckResult> results;

  // The first that failed, or null.
  const CheckResult* FirstFailed() const;
};

// Told the check that comes next and how many of how many are done: a large model takes seconds.
using BeforeCheck = std::function<void(std::string_view next, int64_t done, int64_t total)>;

// Runs every check; parameters are as they were afterwards only in number. Large models are cut
// first: see CheckReport::scope. Restores the number of threads. Errors: not enough memory, no
// folder for temporary files.
Result<CheckReport> CheckModel(std::unique_ptr<Gpt> model, uint64_t seed,
                               const BeforeCheck& before_check = {});

// The same for weights that Gpt::Initialize draws: the loss must start near ln(vocab_size); for the
// checks after it weights are stirred so that no part is idle. Errors: also a configuration that is
// none.
Result<CheckReport> CheckFreshModel(const ModelConfig& config, const Kernels& kernels,
                                    uint64_t seed, const BeforeCheck& before_check = {});

}  // namespace heed
