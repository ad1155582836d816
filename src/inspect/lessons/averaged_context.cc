#include <algorithm>
#include <cmath>

#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/embedding.h"
#include "kernels/reference/matmul.h"
#include "nn/rope.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kT = 3, kC = 4;

// [T, C]: the words' vectors, with the positions' added when there are some.
Numbers Embed(const std::vector<int32_t>& tokens, const Numbers& table, const double* positions) {
  Numbers x(kT * kC);
  reference::EmbeddingForward<double>({.B = 1,
                                       .T_ = kT,
                                       .C = kC,
                                       .V = kT,
                                       .tokens = tokens.data(),
                                       .wte = table.data(),
                                       .wpe = positions,
                                       .x = x.data()});
  return x;
}

// weights [T] times x [T, C].
Numbers Mix(const Numbers& weights, const Numbers& x) {
  Numbers mixed(kC);
  reference::Matmul<double>({.M = 1,
                             .N = kC,
                             .K = kT,
                             .a = weights.data(),
                             .a_row = kT,
                             .b = x.data(),
                             .b_row = kC,
                             .c = mixed.data(),
                             .ldc = kC});
  return mixed;
}

// Attention of the last position over x, which is query, key and value at once.
Numbers Attend(const Numbers& x) {
  Numbers scores(kT), z(kC);
  const AttentionArgs<double> args{.B = 1,
                                   .T_ = 1,
                                   .S = kT,
                                   .H = 1,
                                   .Hkv = 1,
                                   .D = kC,
                                   .scale = 0.5,
                                   .q = &x[(kT - 1) * kC],
                                   .q_row = kC,
                                   .k = x.data(),
                                   .v = x.data(),
                                   .kv_row = kC,
                                   .z = z.data()};
  Numbers pattern(kT);
  reference::AttendOne(args, 0, 0, 0, scores.data(), pattern.data());
  return z;
}

// Two rows, one for each order, and their difference.
Step Compare(const char* name, const char* formula, const Numbers& one, const Numbers& other,
             const char* note) {
  Numbers values = one;
  values.insert(values.end(), other.begin(), other.end());
  for (int64_t c = 0; c < kC; ++c) values.push_back(one[c] - other[c]);
  return {name,
          formula,
          "order C",
          {3, kC},
          std::move(values),
          note,
          {"dog bites man", "man bites dog", "difference"}};
}

}  // namespace

Result<std::vector<Step>> TellAveragedContext(const LessonInput&) {
  const Numbers table = {1, 0, 0.5, 0, 0, 1, 0, 0.5, -1, 0.5, 0, 1};  // dog, bites, man
  const std::vector<int32_t> one = {0, 1, 2}, other = {2, 1, 0};
  const std::vector<float> sines = SinusoidalTable(kT, kC);
  const Numbers positions(sines.begin(), sines.end());
  const double* p = positions.data();
  const Numbers plain_one = Embed(one, table, nullptr), plain_other = Embed(other, table, nullptr);
  const Numbers placed_one = Embed(one, table, p), placed_other = Embed(other, table, p);
  // A sum and one division, so that equal sums give equal means to the last bit.
  const auto mean = [](const Numbers& x) {
    Numbers m = Mix({1, 1, 1}, x);
    for (double& value : m) value /= kT;
    return m;
  };
  const Numbers weights = {0.2, 0.3, 0.5};
  return std::vector<Step>{
      {"words", "a vector for each word", "V C", {kT, kC}, table, "", {"dog", "bites", "man"}},
      {"positions",
       "sinusoidal, a vector for each position",
       "T C",
       {kT, kC},
       positions,
       "",
       {"p0", "p1", "p2"}},
      Compare("mean", "v' = (e0 + e1 + e2) / 3", mean(plain_one), mean(plain_other),
              "The two orders differ by exactly 0."),
      Compare("trap", "v' = ((e0 + p0) + (e1 + p1) + (e2 + p2)) / 3", mean(placed_one),
              mean(placed_other),
              "Adding positions first changes the vector, and still not by order: the mean of sums "
              "is the sum of means."),
      Compare("by position", "v' = 0.2 e0 + 0.3 e1 + 0.5 e2", Mix(weights, plain_one),
              Mix(weights, plain_other), "Weights that depend on position see the order."),
      Compare("by query", "attention of the last position over e + p", Attend(placed_one),
              Attend(placed_other), "So do weights that depend on the query.")};
}

}  // namespace heed
