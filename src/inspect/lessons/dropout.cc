#include "kernels/reference/dropout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kT = 4, kC = 4;
constexpr int kCalls = 2000;

// z [T, C] of attention with dropout p_attention behind the softmax, then p_residual on the output;
// the step fixes both masks.
Numbers Call(double p_attention, double p_residual, uint32_t step) {
  Numbers x(kT * kC), z(kT * kC);
  for (int64_t i = 0; i < kT * kC; ++i) x[i] = 1 + static_cast<double>(i % 5) / 4;
  reference::AttentionForward<double>({.B = 1,
                                       .T_ = kT,
                                       .S = kT,
                                       .H = 1,
                                       .Hkv = 1,
                                       .D = kC,
                                       .scale = 0.5,
                                       .dropout = {p_attention, {1, step, kDropoutStream}},
                                       .q = x.data(),
                                       .q_row = kC,
                                       .k = x.data(),
                                       .v = x.data(),
                                       .kv_row = kC,
                                       .z = z.data()});
  if (p_residual > 0) {
    reference::Dropout(z.data(), kT * kC, 0, {p_residual, {1, step, kDropoutStream + 1}});
  }
  return z;
}

double Largest(const Numbers& a, const Numbers& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

Numbers Mean(double p_attention, double p_residual) {
  Numbers mean(kT * kC);
  for (int call = 0; call < kCalls; ++call) {
    const Numbers z = Call(p_attention, p_residual, static_cast<uint32_t>(call));
    for (size_t i = 0; i < z.size(); ++i) mean[i] += z[i] / kCalls;
  }
  return mean;
}

}  // namespace

Result<std::vector<Step>> TellDropout(const LessonInput&) {
  const Numbers eval = Call(0, 0, 1);
  const std::vector<std::string> places = {"eval", "attention p = 0.9", "residual p = 0.9"};
  Numbers moved;
  for (const auto& [a, r] : {std::pair{0.0, 0.0}, {0.9, 0.0}, {0.0, 0.9}}) {
    double apart = 0, off = 0;
    for (uint32_t step = 1; step <= 20; ++step) {
      apart = std::max(apart, Largest(Call(a, r, step), Call(a, r, step + 1)));
      off = std::max(off, Largest(Call(a, r, step), eval));
    }
    moved.push_back(apart);
    moved.push_back(off);
  }
  Numbers means = eval, half = Mean(0.5, 0), residual = Mean(0, 0.5);
  means.resize(kC);
  means.insert(means.end(), half.begin(), half.begin() + kC);
  means.insert(means.end(), residual.begin(), residual.begin() + kC);
  return std::vector<Step>{
      {"eval", "Z = A V, nothing dropped", "T C", {kT, kC}, eval},
      {"attention",
       "weights dropped with p = 0.5, kept ones doubled, then Z = A V",
       "T C",
       {kT, kC},
       Call(0.5, 0, 1),
       "Rows lose whole keys: all channels of a row change together."},
      {"residual",
       "Z = A V, then numbers dropped with p = 0.5, kept ones doubled",
       "T C",
       {kT, kC},
       Call(0, 0.5, 1),
       "Single numbers go to 0."},
      {"calls",
       "max |difference| of successive calls and to eval, 20 calls",
       "place what",
       {3, 2},
       moved,
       "Eval repeats itself exactly; each place alone changes training and leaves eval alone.",
       places,
       {"of calls", "to eval"}},
      {"means",
       fmt::format("row 0 of Z, mean of {} calls", kCalls),
       "place C",
       {3, kC},
       means,
       "Dividing by 1 - p keeps the mean: eval needs no correction.",
       {"eval", "attention p = 0.5", "residual p = 0.5"}}};
}

}  // namespace heed
