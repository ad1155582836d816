// Other programs: started, fed, waited for, and ended with everything that they started.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/status.h"

namespace heed {

struct ProcessRequest {
  std::vector<std::string> arguments;  // the program first, found along PATH
  std::string input;                   // its stdin
  // After so many seconds it is killed; 0: never.
  double timeout_s = 0;
  // Becomes true when the work is to be stopped; may be null.
  const std::atomic<bool>* stop = nullptr;
};

struct ProcessResult {
  int exit_code = 0;
  int signal = 0;  // that ended it, or 0
  bool timed_out = false;
  bool wrote_too_much = false;
  std::string out, err;

  bool Succeeded() const { return exit_code == 0 && signal == 0 && !timed_out; }
};

// Runs a program in a process group of its own, which is killed when the program has ended, is late
// or has written more than 64 MiB. The result says which.
// Errors: kIo: no such program, and what else the system says; kInterrupted: `stop`.
Result<ProcessResult> RunProcess(const ProcessRequest& request);

}  // namespace heed
