#include <fmt/format.h>

#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"

namespace heed {
namespace {

// The pattern [N, N] of equal scores.
std::vector<double> EqualPattern(int64_t N, int64_t keys) {
  const std::vector<double> zeros(N);
  std::vector<double> z(N), scores(N * N), pattern(N * N);
  reference::AttentionTrace<double>({.B = 1,
                                     .T_ = N,
                                     .S = N,
                                     .H = 1,
                                     .Hkv = 1,
                                     .D = 1,
                                     .scale = 1,
                                     .window = keys,
                                     .q = zeros.data(),
                                     .q_row = 1,
                                     .k = zeros.data(),
                                     .v = zeros.data(),
                                     .kv_row = 1,
                                     .z = z.data()},
                                    scores.data(), pattern.data());
  return pattern;
}

double CountPairs(const std::vector<double>& pattern) {
  double pairs = 0;
  for (const double weight : pattern) pairs += weight > 0;
  return pairs;
}

}  // namespace

Result<std::vector<Step>> TellSlidingWindow(const LessonInput&) {
  constexpr int64_t N = 6, w = 4, keys = w / 2 + 1;
  const std::vector<double> pattern = EqualPattern(N, keys);
  std::vector<double> seen(N * N), counts(N), pairs;
  for (int64_t at = 0; at < N * N; ++at) {
    seen[at] = pattern[at] > 0;
    counts[at / N] += seen[at];
  }
  std::vector<std::string> q, k, lengths;
  for (int64_t i = 0; i < N; ++i) {
    q.push_back(fmt::format("q{}", i));
    k.push_back(fmt::format("k{}", i));
  }
  for (const int64_t length : {6, 12, 24, 48, 96}) {
    pairs.push_back(CountPairs(EqualPattern(length, 0)));
    pairs.push_back(CountPairs(EqualPattern(length, keys)));
    lengths.push_back(fmt::format("N = {}", length));
  }
  return std::vector<Step>{{"mask",
                            "query t sees the keys t-2, t-1, t: w = 4, w/2 + 1 = 3 keys",
                            "T S",
                            {N, N},
                            seen,
                            "",
                            q,
                            k},
                           {"pattern",
                            "softmax of equal scores over the keys that are seen",
                            "T S",
                            {N, N},
                            pattern,
                            "",
                            q,
                            k},
                           {"keys seen", "row sums of the mask", "T", {N}, counts, "", {}, q},
                           {"work",
                            "pairs of query and key: N (N + 1) / 2, and with the window",
                            "N kind",
                            {5, 2},
                            pairs,
                            "Twice the length is four times the work, or twice with the window.",
                            lengths,
                            {"all", "window"}}};
}

}  // namespace heed
