// A sampler in plain loops, with faults that can be planted in it.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/planted_dump.h"

namespace heed {

struct PlantedSampler {
  using Numbers = std::vector<double>;

  double temperature = 1;
  size_t top_k = 0;
  double top_p = 1;
  double penalty = 1;

  static Numbers Softmax(Numbers z) {
    double sum = 0;
    for (double& x : z) sum += x = std::exp(x);
    for (double& x : z) x /= sum;
    return z;
  }

  // The probabilities of logits [V]; `fault` is what the sampler gets wrong.
  Numbers Sample(Numbers z, const Numbers& previous, const std::string& fault) const {
    const size_t V = z.size();
    std::vector<bool> seen(V);
    for (const double token : previous) {
      const bool again = seen[size_t(token)] && fault != "repetition_penalty_per_occurrence";
      if (again || penalty == 1 || fault == "repetition_penalty_ignored") continue;
      seen[size_t(token)] = true;
      double& x = z[size_t(token)];
      x = x > 0 || fault == "repetition_penalty_sign" ? x / penalty : x * penalty;
    }
    if (fault == "temperature_zero") return Numbers(V, std::nan(""));
    if (fault == "temperature_on_probabilities") z = Softmax(z);
    for (double& x : z) {
      x /= fault == "temperature_twice"      ? temperature * temperature
           : fault == "temperature_ignored"  ? 1
           : fault == "temperature_inverted" ? 1 / temperature
                                             : temperature;
    }
    if (top_k > 0) {
      Numbers sorted = z;
      std::sort(sorted.rbegin(), sorted.rend());
      const double least = sorted[top_k - 1 + (fault == "top_k_off_by_one" ? 1 : 0)];
      for (double& x : z) x = x < least ? -1e300 : x;
    }
    Numbers p = Softmax(z);
    std::vector<size_t> order(V);
    std::iota(order.begin(), order.end(), 0);
    const bool rising = fault == "top_p_ascending";
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return rising ? p[a] < p[b] : p[a] > p[b]; });
    if (top_p < 1 && fault != "filter_ignored") {
      double sum = 0, kept = 0;
      for (size_t i = 0; i < V; ++i) {
        double& x = p[order[i]];
        const double before = sum;
        sum += x;
        const bool dropped =
            rising || fault == "top_p_drops_crossing" ? sum > top_p : before >= top_p;
        if (dropped && i > 0) x = 0;
        kept += x;
      }
      for (double& x : p) x /= fault == "probabilities_not_renormalised" ? 1 : kept;
    }
    if (top_p == 1 && fault == "top_p_one_is_greedy") {
      p.assign(V, 0);
      p[order[0]] = 1;
    }
    Numbers sorted;
    for (const size_t i : order) sorted.push_back(p[i]);
    return fault == "sort_not_undone" ? sorted : p;
  }

  // Distinct logits without surprises: 1.5, 1.25, 1.0, ... shuffled, many of them negative.
  static Numbers Logits(uint32_t seed, size_t V) {
    Numbers z(V);
    for (size_t i = 0; i < V; ++i) z[i] = 1.5 - 0.25 * double(i);
    std::shuffle(z.begin(), z.end(), std::mt19937(seed));
    return z;
  }

  TensorSet Set(const Numbers& z, const Numbers& previous, const Numbers& p, DType dtype) const {
    const auto V = int64_t(z.size());
    TensorSet set;
    set["logits"] = {{V}, z, dtype};
    set["probabilities"] = {{V}, p, dtype};
    set["previous"] = {{int64_t(previous.size())}, previous, DType::kI64};
    set.settings = {{"temperature", std::to_string(temperature)},
                    {"top_k", std::to_string(top_k)},
                    {"top_p", std::to_string(top_p)},
                    {"repetition_penalty", std::to_string(penalty)}};
    return set;
  }

  // A dump of random logits, of a size of its own for each seed.
  TensorSet Random(uint32_t seed, DType dtype, const std::string& fault) const {
    const Numbers z = Logits(seed, 13 + 2 * seed);
    // The last of them has a negative logit.
    const Numbers previous = {double(seed), 4, 4,
                              double(std::min_element(z.begin(), z.end()) - z.begin())};
    return Set(z, previous, Sample(z, previous, fault), dtype);
  }
};

}  // namespace heed
