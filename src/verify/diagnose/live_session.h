// Questions to a live program, and what the right formula answers to them under the conventions
// that its first answer showed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "verify/diagnose/attention_search.h"
#include "verify/diagnose/live_attention.h"
#include "verify/diagnose/live_probe.h"
#include "verify/diagnose/live_program.h"

namespace heed {

inline constexpr int64_t kLivePositions = 9;  // of an ordinary question

class LiveSession {
 public:
  struct Question {
    Probe probe;
    AttentionCase attention;
    double dropout = 0;  // in train mode
  };
  static Question Plain(const Probe& probe) { return {probe, MakeCase(probe)}; }

  // `request` must outlive this object; `stated`: the settings that were given.
  LiveSession(const LiveRequest& request, LiveProgram program, ProbeShape shape, double dropout,
              std::set<std::string> stated);

  // Errors: those of LiveProgram.
  Result<LiveAnswer> Ask(const Question& question, const std::string& want = "");
  // In one run, where the program can.
  Status AskAhead(const std::vector<Question>& questions);
  // What the first answer shows, and what was found by trying, is known from now on.
  void Settle(const LiveAnswer& answer, const Diagnosis& diagnosis);

  Probe ProbeOf(int64_t B, int64_t T, uint64_t seed = 1) const;
  // No more than the layer takes.
  int64_t AtMost(int64_t positions) const;
  bool Has(const std::string& mode) const { return modes_.contains(mode); }
  const ProbeShape& shape() const { return shape_; }
  double dropout() const { return dropout_; }
  bool dropout_is_given() const;
  double bound() const { return bound_; }  // of what rounding may leave
  const LiveProgram& program() const { return program_; }

  // y [B, T, C] by the right formula.
  std::vector<double> RightY(const Probe& probe, const AttentionCase& attention) const;
  // The same of a search's dump.
  std::vector<double> RightY(AttentionSearch* search) const;
  // y as each way to make these faults has it.
  static std::vector<std::vector<double>> Predicted(AttentionSearch* search,
                                                    const std::vector<std::string>& faults);
  // The case and the answer as a diagnosis reads them: the whole, or one chunk behind a cache that
  // the right formula fills.
  AttentionDump DumpOf(const Probe& probe, const AttentionCase& attention,
                       const std::vector<TheirTensor>& theirs) const;
  // The case of a question that nobody has answered, cut as if the second chunk failed.
  AttentionDump Unanswered(const Probe& probe) const;

 private:
  LiveQuestion Told(const Question& question, const std::string& want) const;
  const AttentionRecipe& RightOf(const AttentionSearch& search) const;
  std::vector<double> RightTensor(const Probe& probe, const AttentionCase& attention,
                                  Stage stage) const;
  AttentionDump DumpOf(AttentionCase attention, AttentionContext context,
                       std::vector<TheirTensor> theirs) const;

  const LiveRequest& request_;
  LiveProgram program_;
  ProbeShape shape_;
  double dropout_;
  std::set<std::string> told_, stated_, modes_;
  std::map<std::string, std::string> found_;  // conventions of the first answer
  double bound_ = 0;
};

// Positions [first, first + count) of a tensor [outer, T, width].
std::vector<double> PositionsOf(const std::vector<double>& from, int64_t T, int64_t width,
                                int64_t first, int64_t count);

}  // namespace heed
