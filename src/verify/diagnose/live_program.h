// Somebody's program that answers questions about its attention. docs/diagnose-live.md describes
// the files.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "io/file.h"
#include "verify/diagnose/attention_dump.h"

namespace heed {

struct LiveCommand {
  std::string line;       // of sh; two file names are put behind it
  double timeout_s = 60;  // of each run
  // Becomes true when the work is to be stopped; may be null.
  const std::atomic<bool>* stop = nullptr;
};

struct LiveQuestion {
  // Or train, train_again, cached, padded, alibi, qk_norm, qk_layernorm.
  std::string mode = "eval";
  AttentionCase attention;         // x and weights, without a cache
  AttentionContext context;        // as MakeContext has it
  std::vector<int64_t> chunks;     // of the positions, for `cached`; their sum is T
  double dropout = 0;              // for `train`
  std::string want;                // an intermediate that would help; may be empty
  std::set<std::string> settings;  // those of attention.settings that are told, besides sizes
};

struct LiveAnswer {
  std::vector<TheirTensor> theirs;  // y is the last
  std::set<std::string> modes;      // that the program has besides eval
};

class LiveProgram {
 public:
  // Error (kIo): no temporary folder.
  static Result<LiveProgram> Create(LiveCommand command);

  // Writes the question, runs the program, reads its answer. Errors: kRequest when the program
  // fails before any mathematics, see Failure; kInterrupted; kIo.
  Result<LiveAnswer> Ask(const LiveQuestion& question);

  // Asks several questions in one run, for a program with the mode "many". Ask then has their
  // answers at hand; what fails here is asked again by it. Errors: kInterrupted; kIo.
  Status AskAhead(std::vector<LiveQuestion> questions);

  // The error of a program that failed. `kind`: not_found, import_error, missing_file,
  // not_implemented, shape_error, exception, crash, time_out, no_output, bad_output, wrong_output
  // or not_finite.
  tl::unexpected<Error> Failure(const std::string& mode, const std::string& kind,
                                const std::string& what, const std::string& hint = "") const;

  int64_t runs() const { return runs_; }

 private:
  LiveProgram(LiveCommand command, ScratchFolder folder)
      : command_(std::move(command)), folder_(std::move(folder)) {}

  std::string PathOf(const char* what, size_t number) const;
  Status Write(const LiveQuestion& question, size_t number) const;
  // The last `count` questions that were written, from number 0 on.
  Result<ProcessResult> RunOn(size_t count);
  Result<LiveAnswer> Read(const LiveQuestion& question, size_t number) const;

  LiveCommand command_;
  ScratchFolder folder_;
  std::vector<std::pair<LiveQuestion, LiveAnswer>> ahead_;
  int64_t runs_ = 0;
};

}  // namespace heed
