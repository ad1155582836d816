// Losses of random logits, averaged in plain loops.
#pragma once

#include <cmath>
#include <vector>

#include "support/planted_dump.h"

namespace heed {

struct LossDump {
  DType dtype;
  int64_t B, T, V;
  std::vector<double> logits, labels;

  // Rows of unequal numbers of targets where some are `ignored`.
  LossDump(uint32_t seed, DType type, bool ignored)
      : dtype(type), B(2 + seed), T(8 + seed), V(15 + 2 * seed) {
    Draw draw(seed, type);
    logits = draw.Normal(B * T * V, 2);
    labels = draw.Ids(B * T, V);
    if (!ignored) return;
    for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, T + 5, T + 6}) {
      labels[at] = -1;
    }
  }

  // Of the row's probabilities taken for logits where `twice`.
  double Nll(int64_t b, int64_t t, int64_t label, bool twice = false) const {
    std::vector<double> row(&logits[(b * T + t) * V], &logits[(b * T + t) * V] + V);
    for (int times = 0; times < (twice ? 2 : 1); ++times) {
      double sum = 0;
      for (const double x : row) sum += std::exp(x);
      for (double& x : row) x = std::exp(x) / sum;
    }
    return -std::log(row[label]);
  }
  int64_t Label(int64_t b, int64_t t) const { return int64_t(labels[b * T + t]); }

  // The losses of row b when position t is scored on the label at t + shift.
  std::vector<double> Row(int64_t b, int64_t shift, bool twice = false) const {
    std::vector<double> row;
    for (int64_t t = 0; t < T; ++t) {
      const int64_t at = t + shift;
      if (at >= 0 && at < T && Label(b, at) >= 0) row.push_back(Nll(b, t, Label(b, at), twice));
    }
    return row;
  }

  static double Mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / double(values.size());
  }
  double MeanAt(int64_t shift, bool twice = false) const {
    std::vector<double> all;
    for (int64_t b = 0; b < B; ++b) {
      for (const double value : Row(b, shift, twice)) all.push_back(value);
    }
    return Mean(all);
  }
  double MeanOfExponentials() const {
    double sum = 0;
    for (int64_t b = 0; b < B; ++b) sum += std::exp(Mean(Row(b, 0)));
    return sum / double(B);
  }
  double MeanOfMeans() const {
    double sum = 0;
    for (int64_t b = 0; b < B; ++b) sum += Mean(Row(b, 0));
    return sum / double(B);
  }
  // All but those of one label.
  double MeanWithout(int64_t left_out) const {
    std::vector<double> kept;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        const int64_t label = Label(b, t);
        if (label >= 0 && label != left_out) kept.push_back(Nll(b, t, label));
      }
    }
    return Mean(kept);
  }
  int64_t Targets() const {
    int64_t count = 0;
    for (const double label : labels) count += label >= 0;
    return count;
  }

  TensorSet Set(double reported, const char* name = "targets", const char* number = "loss") const {
    TensorSet set;
    set["logits"] = {{B, T, V}, logits, dtype};
    set[name] = {{B, T}, labels, DType::kI64};
    set[number] = {{1}, {reported}, DType::kF32};
    return set;
  }
};

}  // namespace heed
