#include "verify/diagnose/live_failing_input.h"

#include <algorithm>
#include <span>

#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr size_t kMostShortenings = 10;  // questions spent on the shortest failing input

std::vector<Probe> Shorter(const Probe& probe) {
  std::vector<Probe> shorter;
  for (const int64_t B : {1, 2}) {
    if (B > probe.B) continue;
    const int64_t most = std::min(probe.T, kLivePositions);
    for (int64_t T = 1; T <= most; ++T) {
      if (B == probe.B && T == probe.T) continue;
      Probe candidate = probe;
      candidate.B = B;
      candidate.T = T;
      if (probe.chunks.empty()) {
        shorter.push_back(candidate);
        continue;
      }
      for (int64_t count = 1; count < T; ++count) {
        candidate.chunks = {T - count, count};
        if (shorter.size() < 40) shorter.push_back(candidate);
      }
    }
  }
  return shorter;
}

// Whether a fault that was named shows there: one way to make it at least.
bool Shows(const LiveSession& session, const Probe& probe, const Diagnosis& diagnosis) {
  const AttentionDump dump = session.Unanswered(probe);
  AttentionSearch search(dump);
  const Numbers right = session.RightY(&search);
  for (const Explanation& e : diagnosis.explanations) {
    const std::vector<Numbers> predicted = LiveSession::Predicted(&search, e.faults);
    if (predicted.empty()) return true;
    for (const Numbers& y : predicted) {
      if (!(Residual(y, right) <= 100 * session.bound())) return true;
    }
  }
  return diagnosis.explanations.empty();
}

FailingInput FailingInputOf(const Probe& probe, const AttentionCase& attention,
                            const Numbers& theirs, const Numbers& right) {
  const int64_t T = attention.T, C = attention.proj.out;
  int64_t worst = 0;
  double most = -1;
  for (int64_t row = 0; row < attention.B * T; ++row) {
    const std::span<const double> ours(right.data() + row * C, static_cast<size_t>(C));
    const double apart = Residual({theirs.data() + row * C, static_cast<size_t>(C)}, ours);
    if (apart > most) {
      most = apart;
      worst = row;
    }
  }
  return {probe.mode,
          probe.B,
          T,
          probe.chunks,
          Residual(theirs, right),
          ProbeCode(probe, right, worst / T, worst % T)};
}

}  // namespace

void KeepWholeInput(LiveSession* session, const Probe& probe, LiveReport* report) {
  if (!probe.chunks.empty()) return;
  const AttentionCase attention = MakeCase(probe);
  const Result<LiveAnswer> answer = session->Ask({probe, attention});
  if (!answer) return;
  const Numbers &theirs = answer->theirs.back().values, right = session->RightY(probe, attention);
  if (Residual(theirs, right) > 10 * session->bound()) {
    report->failing_input = FailingInputOf(probe, attention, theirs, right);
  }
}

Status ShortenFailingInput(LiveSession* session, const Probe& probe, LiveReport* report) {
  std::vector<Probe> candidates = Shorter(probe);
  // Without a name, what comes before the first wrong row is right.
  if (report->diagnosis.explanations.empty() && probe.chunks.empty()) {
    int64_t first = 0;
    const std::vector<int64_t>& equal = report->diagnosis.equal_rows;
    while (first < static_cast<int64_t>(equal.size()) && equal[first] == first) ++first;
    std::erase_if(candidates, [&](const Probe& p) { return p.T <= first; });
  }
  std::vector<LiveSession::Question> questions;
  for (const Probe& candidate : candidates) {
    if (questions.size() < kMostShortenings && Shows(*session, candidate, report->diagnosis)) {
      questions.push_back(LiveSession::Plain(candidate));
    }
  }
  HEED_TRY(session->AskAhead(questions));
  for (const LiveSession::Question& question : questions) {
    Result<LiveAnswer> answer = session->Ask(question);
    if (!answer && answer.error().kind != ErrorKind::kRequest) {
      return tl::make_unexpected(answer.error());
    }
    if (!answer) continue;
    const Numbers right = session->RightY(question.probe, question.attention);
    const double residual = Residual(answer->theirs.back().values, right);
    if (residual <= 10 * session->bound()) continue;
    report->failing_input =
        FailingInputOf(question.probe, question.attention, answer->theirs.back().values, right);
    return {};
  }
  KeepWholeInput(session, probe, report);
  return {};
}

}  // namespace heed
