#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"
#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"

namespace heed {
namespace {

constexpr int64_t kDraws = 20000, kKeys = 8;
constexpr int64_t kWidths[] = {2, 16, 64, 256};

std::vector<double> Normals(int64_t n, uint32_t stream) {
  std::vector<double> x(n);
  const RandomKey key{1, 0, stream};
  ParallelFor(kDraws, [&](int64_t piece) {
    for (int64_t i = piece * n / kDraws; i < (piece + 1) * n / kDraws; ++i) {
      x[i] = RandomNormal(key, static_cast<uint64_t>(i));
    }
  });
  return x;
}

double Deviation(const std::vector<double>& x) {
  double sum = 0, squares = 0;
  for (const double value : x) {
    sum += value;
    squares += value * value;
  }
  const auto n = static_cast<double>(x.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

}  // namespace

Result<std::vector<Step>> TellScaling(const LessonInput&) {
  std::vector<double> deviations, sharpest;
  std::vector<std::string> widths;
  const std::vector<double> q = Normals(kDraws * kWidths[3], 1);
  const std::vector<double> k = Normals(kDraws * kWidths[3], 2);
  for (const int64_t d : kWidths) {
    for (const double scale : {1.0, 1 / std::sqrt(static_cast<double>(d))}) {
      // Every draw is a query with one key for the deviation; and every kKeys keys make a softmax.
      std::vector<double> scores(kDraws), pattern(kKeys), row(kKeys);
      double largest = 0;
      for (int64_t i = 0; i < kDraws; ++i) {
        const AttentionArgs<double> one{.B = 1,
                                        .T_ = 1,
                                        .S = 1,
                                        .H = 1,
                                        .Hkv = 1,
                                        .D = d,
                                        .scale = scale,
                                        .q = &q[i * d],
                                        .k = &k[i * d]};
        reference::AttentionRow(one, 0, 0, 0, &scores[i], pattern.data());
        if (i % kKeys != 0) continue;
        AttentionArgs<double> group = one;
        group.S = kKeys;
        group.kv_row = d;
        reference::AttentionRow(group, 0, 0, 0, row.data(), pattern.data());
        largest += *std::max_element(pattern.begin(), pattern.end());
      }
      deviations.push_back(Deviation(scores));
      sharpest.push_back(largest / static_cast<double>(kDraws / kKeys));
    }
    widths.push_back(fmt::format("d = {}", d));
  }
  const std::vector<std::string> columns = {"q.k", "q.k / sqrt(d)"};
  return std::vector<Step>{
      {"deviation",
       "standard deviation of 20,000 products of normal vectors",
       "d scale",
       {4, 2},
       deviations,
       "sqrt(d) before scaling, 1 after, whatever the width.",
       widths,
       columns},
      {"sharpness",
       "mean of the largest of 8 softmax weights",
       "d scale",
       {4, 2},
       sharpest,
       "Unscaled wide heads choose a single key before they have learned anything, and a saturated "
       "softmax has hardly a gradient.",
       widths,
       columns}};
}

}  // namespace heed
