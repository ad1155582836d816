// A norm in plain loops, with faults that can be planted in it.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "support/planted_dump.h"

namespace heed {

// With one thing to get wrong at each step.
struct PlainNorm {
  int64_t B = 2, T = 3, C = 13;
  bool centre = true;
  double eps = 1e-5;
  bool unbiased = false, eps_outside = false, float_cancels = false;
  double gain_offset = 0;
  bool with_gain = true, with_bias = true;
  // Statistics over the positions of a sequence, or over all that it has.
  bool over_positions = false, over_sequence = false;
  std::function<double(double)> cast = [](double x) { return x; };

  std::vector<double> Of(const std::vector<double>& x, const std::vector<double>& weight,
                         const std::vector<double>& bias) const {
    std::vector<double> y;
    for (int64_t at = 0; at < B * T * C; ++at) {
      const int64_t c = at % C;
      const std::vector<double> group = GroupOf(x, at);
      const auto n = double(group.size());
      double mean = 0, variance = 0;
      for (const double value : group) mean += centre ? value / n : 0;
      for (const double value : group) variance += std::pow(value - mean, 2);
      variance /= unbiased ? n - 1 : n;
      if (float_cancels) {
        float sum = 0, squares = 0;
        for (const double value : group) {
          sum += float(value);
          squares += float(value) * float(value);
        }
        variance = squares / float(n) - (sum / float(n)) * (sum / float(n));
      }
      const double root = eps_outside ? std::sqrt(variance) + eps : std::sqrt(variance + eps);
      double value = cast((x[at] - mean) / root);
      if (with_gain) value *= weight[c] + gain_offset;
      y.push_back(value + (with_bias ? bias[c] : 0));
    }
    return y;
  }

 private:
  // The numbers whose mean and variance norm element `at`.
  std::vector<double> GroupOf(const std::vector<double>& x, int64_t at) const {
    const int64_t b = at / (T * C), row = at / C, c = at % C;
    std::vector<double> group;
    if (over_positions) {
      for (int64_t t = 0; t < T; ++t) group.push_back(x[(b * T + t) * C + c]);
    } else {
      const int64_t first = over_sequence ? b * T * C : row * C;
      const int64_t count = over_sequence ? T * C : C;
      group.assign(x.begin() + first, x.begin() + first + count);
    }
    return group;
  }
};

struct NormDump {
  std::vector<double> x, weight, bias;

  NormDump(uint32_t seed, DType dtype, const PlainNorm& plain, double mean = 0.2) {
    Draw draw(seed, dtype);
    x = draw.Normal(plain.B * plain.T * plain.C, 1, mean);
    for (int64_t c = 0; c < plain.C; ++c) x[2 * plain.C + c] *= 0x1p-8;  // a row of low variance
    weight = draw.Normal(plain.C, 0.2, 1);
    bias = draw.Normal(plain.C, 0.3);
  }

  TensorSet Set(DType dtype, const PlainNorm& plain, const std::vector<double>& y) const {
    const std::vector<int64_t> shape = {plain.B, plain.T, plain.C};
    TensorSet set;
    set["x"] = {shape, x, dtype};
    set["weight"] = {{plain.C}, weight, dtype};
    if (plain.centre) set["bias"] = {{plain.C}, bias, dtype};
    set["y"] = {shape, y, dtype};
    set.settings = {{"kind", plain.centre ? "layernorm" : "rmsnorm"}, {"norm_eps", "1e-05"}};
    return set;
  }
};

}  // namespace heed
