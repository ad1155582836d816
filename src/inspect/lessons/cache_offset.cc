#include <algorithm>
#include <cmath>

#include "inspect/lessons/lesson.h"
#include "inspect/lessons/rotary.h"
#include "kernels/reference/attention.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kLength = 7, kD = 2;

// Rows first .. last - 1 of x [kLength, D], turned at the positions that begin with `position`.
Numbers TurnedRows(const Numbers& x, int64_t first, int64_t last, int64_t position) {
  Numbers rows;
  for (int64_t t = first; t < last; ++t) {
    const Numbers row =
        Turned({x[t * kD], x[t * kD + 1]}, static_cast<double>(position + t - first), {1.0});
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// z [T, D] of T queries over S keys.
Numbers Attend(const Numbers& q, const Numbers& k, const Numbers& v) {
  const auto T = static_cast<int64_t>(q.size()) / kD, S = static_cast<int64_t>(k.size()) / kD;
  Numbers z(T * kD);
  reference::AttentionForward<double>({.B = 1,
                                       .T_ = T,
                                       .S = S,
                                       .H = 1,
                                       .Hkv = 1,
                                       .D = kD,
                                       .scale = 1 / std::sqrt(2.0),
                                       .q = q.data(),
                                       .q_row = kD,
                                       .k = k.data(),
                                       .v = v.data(),
                                       .kv_row = kD,
                                       .z = z.data()});
  return z;
}

double Largest(const Numbers& a, const double* b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Runs the rows in chunks behind a growing cache of rotated keys; with `restart` every chunk
// begins at position 0.
Numbers RunChunks(const Numbers& x, const Numbers& v, std::initializer_list<int64_t> ends,
                  bool restart) {
  Numbers cache, z;
  int64_t first = 0;
  for (const int64_t last : ends) {
    const int64_t position = restart ? 0 : first;
    const Numbers chunk = TurnedRows(x, first, last, position);
    cache.insert(cache.end(), chunk.begin(), chunk.end());
    const Numbers rows = Attend(chunk, cache, {v.begin(), v.begin() + last * kD});
    z.insert(z.end(), rows.begin(), rows.end());
    first = last;
  }
  return z;
}

}  // namespace

Result<std::vector<Step>> TellCacheOffset(const LessonInput&) {
  // Queries and keys are x itself, turned by 1 radian a position.
  const Numbers x = {1, 0, 0, 1, 1, 1, -1, 1, 2, 0, 0.5, -1, 1, -2};
  const Numbers v = {1, 0, 0, 1, 2, 2, -1, 0, 0, 3, 1, 1, -2, 1};
  const Numbers full = RunChunks(x, v, {kLength}, false);
  const Numbers steps = RunChunks(x, v, {1, 2, 3, 4, 5, 6, 7}, false);
  const Numbers chunks = RunChunks(x, v, {3, 7}, false);
  const Numbers restarted = RunChunks(x, v, {1, 2, 3, 4, 5, 6, 7}, true);
  const Numbers cached = TurnedRows(x, 0, 2, 0);
  const Numbers right = TurnedRows(x, 2, 3, 2), wrong = TurnedRows(x, 2, 3, 0);
  Numbers both = right;
  both.insert(both.end(), wrong.begin(), wrong.end());

  // Two new queries behind two cached keys: who sees whom, told by the kernel's weights; and the
  // same two rows of a triangle that is aligned at the top left.
  const Numbers zeros(4 * kD);
  Numbers scores(8), pattern(8), z(2 * kD), top(16);
  reference::AttentionTrace<double>({.B = 1,
                                     .T_ = 2,
                                     .S = 4,
                                     .H = 1,
                                     .Hkv = 1,
                                     .D = kD,
                                     .scale = 1,
                                     .q = zeros.data(),
                                     .q_row = kD,
                                     .k = zeros.data(),
                                     .v = zeros.data(),
                                     .kv_row = kD,
                                     .z = z.data()},
                                    scores.data(), pattern.data());
  Numbers full_z(4 * kD), full_scores(16);
  reference::AttentionTrace<double>({.B = 1,
                                     .T_ = 4,
                                     .S = 4,
                                     .H = 1,
                                     .Hkv = 1,
                                     .D = kD,
                                     .scale = 1,
                                     .q = zeros.data(),
                                     .q_row = kD,
                                     .k = zeros.data(),
                                     .v = zeros.data(),
                                     .kv_row = kD,
                                     .z = full_z.data()},
                                    full_scores.data(), top.data());
  top.resize(8);
  for (Numbers* mask : {&pattern, &top}) {
    for (double& weight : *mask) weight = weight > 0;
  }
  const std::vector<std::string> keys = {"k0", "k1", "k2", "k3"}, queries = {"q2", "q3"};
  return std::vector<Step>{
      {"cached",
       "keys at positions 0 and 1, rotated when they were stored",
       "P d",
       {2, kD},
       cached,
       "",
       {"k0", "k1"}},
      {"next",
       "x2 turned at position 2, and at a position that starts again at 0",
       "place d",
       {2, kD},
       both,
       "",
       {"at 2", "at 0"}},
      {"full pass", "Z of 7 tokens at once", "T d", {kLength, kD}, full},
      {"cached pass",
       "largest difference to it: one by one, and as 3 + 4 tokens",
       "way",
       {2},
       {Largest(steps, full.data()), Largest(chunks, full.data())},
       "",
       {},
       {"one by one", "3 + 4"}},
      {"restarted",
       "largest difference when each step counts from 0 again",
       "",
       {},
       {Largest(restarted, full.data())},
       "Shapes fit, text decays: only this comparison is loud."},
      {"mask",
       "2 new queries behind 2 cached keys, aligned at the bottom right",
       "T S",
       {2, 4},
       pattern,
       "",
       queries,
       keys},
      {"wrong mask",
       "the same aligned at the top left",
       "T S",
       {2, 4},
       top,
       "Right without a cache; behind one the new tokens do not even see themselves.",
       queries,
       keys}};
}

}  // namespace heed
