#include "verify/diagnose/live_explanation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>

#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int kMostRounds = 3;  // of separating inputs

// Numbers in a text, in order.
Numbers NumbersIn(const std::string& text) {
  Numbers numbers;
  for (size_t i = 0; i < text.size();) {
    size_t used = 0;
    if (std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
      const char* begin = text.c_str() + i;
      char* end = nullptr;
      numbers.push_back(std::strtod(begin, &end));
      used = static_cast<size_t>(end - begin);
    }
    i += std::max<size_t>(used, 1);
  }
  return numbers;
}

// Fitted numbers may differ by what rounding leaves.
bool SameDetail(const std::string& a, const std::string& b) {
  const Numbers x = NumbersIn(a), y = NumbersIn(b);
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i] - y[i]) > 0.05 * std::max(std::abs(x[i]), std::abs(y[i]))) return false;
  }
  return true;
}

// The same question about other numbers.
Probe Another(const LiveSession& session, const Probe& probe, uint64_t seed) {
  Probe other = probe;
  other.seed = seed;
  if (probe.chunks.empty()) {
    other.T = session.AtMost(probe.T + 2);
    other.B = probe.B + 1;
  }
  return other;
}

// How far the results by the explanations lie apart at the least.
double Separation(const LiveSession& session, const Probe& probe, const Diagnosis& diagnosis) {
  const AttentionDump dump = session.Unanswered(probe);
  AttentionSearch search(dump);
  std::vector<std::vector<Numbers>> all;
  for (const Explanation& e : diagnosis.explanations) {
    all.push_back(LiveSession::Predicted(&search, e.faults));
  }
  double least = std::numeric_limits<double>::infinity();
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      for (const Numbers& x : all[a]) {
        for (const Numbers& y : all[b]) least = std::min(least, Residual(x, y));
      }
    }
  }
  return least;
}

// Of some inputs, the one whose results by the explanations lie farthest apart.
std::optional<Probe> MostSeparating(const LiveSession& session, const Probe& probe, uint64_t round,
                                    const Diagnosis& diagnosis) {
  std::vector<Probe> candidates;
  for (uint64_t i = 0; i < 3; ++i) {
    Probe candidate = Another(session, probe, probe.seed + 20 + 10 * round + i);
    if (i == 1) candidate.gain *= 4;
    if (i == 2 && probe.chunks.empty()) candidate.T = session.AtMost(33);
    candidates.push_back(candidate);
  }
  std::optional<Probe> best;
  double most = 100 * session.bound();
  for (const Probe& candidate : candidates) {
    const double apart = Separation(session, candidate, diagnosis);
    if (apart > most) {
      most = apart;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

Status SeparateExplanations(LiveSession* session, const Probe& probe, Diagnosis* diagnosis) {
  for (int round = 0; round < kMostRounds; ++round) {
    Diagnosis& d = *diagnosis;
    if (d.explanations.size() < 2) return {};
    const std::optional<Probe> next =
        MostSeparating(*session, probe, static_cast<uint64_t>(round), d);
    const std::string want = next || d.ask_for.empty() ? "" : d.ask_for[0];
    if (!next && want.empty()) return {};
    const Probe& asked = next ? *next : probe;
    const AttentionCase attention = MakeCase(asked);
    Result<LiveAnswer> answer = session->Ask({asked, attention}, want);
    if (!answer && answer.error().kind != ErrorKind::kRequest) {
      return tl::make_unexpected(answer.error());
    }
    if (!answer) return {};
    const Diagnosis second = DiagnoseAttention(session->DumpOf(asked, attention, answer->theirs));
    const auto left = [&](const Explanation& e) {
      return std::ranges::find(second.explanations, e.faults, &Explanation::faults) !=
             second.explanations.end();
    };
    std::vector<Explanation> both;
    std::ranges::copy_if(d.explanations, std::back_inserter(both), left);
    if (both.empty()) {
      d.seen.emplace_back("what fits the first input does not fit the second");
      d.verdict = DiagnosisVerdict::kUnexplained;
      d.explanations.clear();
      return {};
    }
    if (both.size() == d.explanations.size() && !next) return {};
    d.explanations = std::move(both);
    if (d.explanations.size() == 1) {
      d.verdict = DiagnosisVerdict::kFault;
      d.ask_for.clear();
      d.seen = {want.empty() ? fmt::format("separated by an input of {} positions", asked.T)
                             : "separated by " + want};
    }
  }
  return {};
}

Status ConfirmExplanation(LiveSession* session, const Probe& probe, Diagnosis* diagnosis) {
  const Probe other = Another(*session, probe, probe.seed + 10);
  const AttentionCase attention = MakeCase(other);
  Result<LiveAnswer> answer = session->Ask({other, attention});
  if (!answer) {
    if (answer.error().kind != ErrorKind::kRequest) return tl::make_unexpected(answer.error());
    diagnosis->seen.push_back("a second input: " + answer.error().found);
    return {};
  }
  const Diagnosis second = DiagnoseAttention(session->DumpOf(other, attention, answer->theirs));
  const Explanation& first = diagnosis->explanations[0];
  for (const Explanation& explanation : second.explanations) {
    if (explanation.faults == first.faults && SameDetail(explanation.detail, first.detail)) {
      diagnosis->seen.emplace_back("a second input gives the same name");
      return {};
    }
  }
  std::string sentence = "a second input is not explained by it";
  if (!second.explanations.empty() && !second.explanations[0].faults.empty()) {
    sentence += fmt::format(", but by {}", fmt::join(second.explanations[0].faults, " + "));
  }
  diagnosis->seen.push_back(
      fmt::format("{} fits the first input, {}", fmt::join(first.faults, " + "), sentence));
  diagnosis->verdict = DiagnosisVerdict::kUnexplained;
  diagnosis->explanations.clear();
  return {};
}

}  // namespace heed
