#include "infer/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace heed {
namespace {

void Normalise(std::vector<double>* p) {
  const double sum = std::accumulate(p->begin(), p->end(), 0.0);
  for (double& x : *p) x /= sum;
}

void PenaliseRepetition(double penalty, std::span<const int32_t> previous, std::vector<double>* z) {
  std::vector<bool> seen(z->size());
  for (int32_t token : previous) {
    if (seen[token]) continue;
    seen[token] = true;
    double& x = (*z)[token];
    x = x > 0 ? x / penalty : x * penalty;
  }
}

void KeepTopK(int64_t k, std::vector<double>* z) {
  std::vector<double> sorted = *z;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const double least = sorted[k - 1];
  for (double& x : *z) {
    if (x < least) x = -std::numeric_limits<double>::infinity();
  }
}

void KeepTopP(double top_p, std::vector<double>* p) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < p->size(); ++i) {
    if ((*p)[i] > 0) order.push_back(static_cast<int32_t>(i));
  }
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return (*p)[a] != (*p)[b] ? (*p)[a] > (*p)[b] : a < b; });
  double before = 0;
  for (int32_t token : order) {
    const double here = (*p)[token];
    if (before >= top_p) (*p)[token] = 0;
    before += here;
  }
  Normalise(p);
}

void KeepMinP(double min_p, std::vector<double>* p) {
  const double least = min_p * *std::max_element(p->begin(), p->end());
  for (double& x : *p) {
    if (x < least) x = 0;
  }
  Normalise(p);
}

Status OutOfRange(const char* name, double value, const char* expected) {
  return BadRequest(name, fmt::format("{}", value), expected);
}

}  // namespace

Status SamplingSettings::Validate() const {
  // Comparisons are written so that NaN fails them.
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    return OutOfRange("--temperature", temperature, "a number from 0 (greedy)");
  }
  if (top_k < 0) {
    return OutOfRange("--top-k", static_cast<double>(top_k), "a whole number from 0 (all)");
  }
  if (!(top_p > 0 && top_p <= 1)) return OutOfRange("--top-p", top_p, "a number in (0, 1]");
  if (!(min_p >= 0 && min_p < 1)) return OutOfRange("--min-p", min_p, "a number in [0, 1)");
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty))) {
    return OutOfRange("--repetition-penalty", repetition_penalty, "a number above 0");
  }
  return {};
}

std::vector<double> SamplingProbabilities(const SamplingSettings& settings,
                                          std::span<const float> logits,
                                          std::span<const int32_t> previous) {
  std::vector<double> z(logits.begin(), logits.end());
  if (settings.repetition_penalty != 1) {
    PenaliseRepetition(settings.repetition_penalty, previous, &z);
  }
  const auto top = std::max_element(z.begin(), z.end());
  if (settings.temperature == 0) {
    const auto best = top - z.begin();
    std::fill(z.begin(), z.end(), 0.0);
    z[best] = 1;
    return z;
  }
  if (settings.top_k > 0 && settings.top_k < static_cast<int64_t>(z.size())) {
    KeepTopK(settings.top_k, &z);
  }
  // Scaling after the maximum is taken away keeps tiny temperatures from overflowing.
  const double largest = *std::max_element(z.begin(), z.end());
  for (double& x : z) x = std::exp((x - largest) / settings.temperature);
  Normalise(&z);
  if (settings.top_p < 1) KeepTopP(settings.top_p, &z);
  if (settings.min_p > 0) KeepMinP(settings.min_p, &z);
  return z;
}

int32_t LargestLogit(std::span<const float> logits) {
  // Several running maxima side by side, which a compiler turns into vectors.
  constexpr size_t kLanes = 16;
  float most[kLanes];
  std::fill_n(most, kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) most[l] = logits[i + l] > most[l] ? logits[i + l] : most[l];
  }
  float largest = *std::max_element(most, most + kLanes);
  for (; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

int32_t Draw(std::span<const double> probabilities, double u) {
  double sum = 0;
  int32_t last = 0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0) continue;
    sum += probabilities[i];
    last = static_cast<int32_t>(i);
    if (u < sum) return last;
  }
  return last;  // rounding left the sum a little below u
}

}  // namespace heed
