// The diagnosis of an attention layer that can be asked: inputs are chosen to separate what is
// left, its modes are held against each other, and the shortest failing input is looked for.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "verify/check.h"
#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/live_program.h"

namespace heed {

struct LiveSettings {
  std::string run;
  double timeout = 60;
  int64_t n_embd = 0;                                         // 0: chosen
  int64_t block_size = 0;                                     // 0: no limit
  double dropout = std::numeric_limits<double>::quiet_NaN();  // NaN: chosen
  bool bias = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("run", self.run, "a command that answers for an attention layer; see docs");
    visit("timeout", self.timeout, "seconds that one answer may take");
    visit("n_embd", self.n_embd, "width of x; chosen when not given, as other sizes are");
    visit("block_size", self.block_size, "most positions that the layer takes");
    visit("dropout", self.dropout, "probability that the layer has; chosen when not given");
    visit("bias", self.bias, "every projection has a bias");
  }
};

struct LiveRequest {
  LiveSettings settings;
  SettingTexts given;  // of attention
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> note;  // a line for each question; may be null
};

// The smallest batch and number of positions that were seen to fail.
struct FailingInput {
  std::string mode;
  int64_t B = 0, T = 0;
  std::vector<int64_t> chunks;  // through a cache
  double residual = 0;
  std::string code;  // numpy
};

struct LiveReport {
  Diagnosis diagnosis;
  std::vector<CheckResult> checks;
  std::optional<FailingInput> failing_input;
  int64_t runs = 0;
};

// A name is given when it holds on a second input too. Errors: settings that do not go together;
// LiveProgram::Ask's on the first question. A mode that fails later is a check that failed.
Result<LiveReport> DiagnoseLive(const LiveRequest& request);

}  // namespace heed
