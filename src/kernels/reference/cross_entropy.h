// Cross-entropy of logits against the index of the right class.
#pragma once

#include <cmath>

#include "kernels/args.h"
#include "kernels/reference/wide.h"

namespace heed::reference {

// The softmax of a row as exp(logit - max) / sum: no exponential overflows, and one of them is 1.
template <class T>
struct RowSoftmax {
  T max;
  Wide<T> sum;
};

template <class T>
RowSoftmax<T> RowSoftmaxOf(const T* logits, int64_t V) {
  using std::exp;
  RowSoftmax<T> row{logits[0], 0};
  for (int64_t v = 1; v < V; ++v) {
    if (logits[v] > row.max) row.max = logits[v];
  }
  for (int64_t v = 0; v < V; ++v) row.sum += exp(Wide<T>(logits[v]) - row.max);
  return row;
}

// log sum exp(logits) - logits[target], in nats.
template <class T>
Wide<T> RowLoss(const T* logits, int64_t V, int32_t target) {
  using std::log;
  const RowSoftmax<T> row = RowSoftmaxOf(logits, V);
  return log(row.sum) + (Wide<T>(row.max) - logits[target]);
}

// logits become scale · (softmax - onehot(target)).
template <class T>
void RowGradient(T* logits, int64_t V, int32_t target, T scale) {
  using std::exp;
  const RowSoftmax<T> row = RowSoftmaxOf(logits, V);
  for (int64_t v = 0; v < V; ++v) {
    const Wide<T> onehot = v == target ? 1.0 : 0.0;
    logits[v] = static_cast<T>(scale * (exp(Wide<T>(logits[v]) - row.max) / row.sum - onehot));
  }
}

template <class T>
void CrossEntropy(const CrossEntropyArgs<T>& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    T* logits = args.logits + r * args.V;
    const int32_t target = args.targets[r];
    const bool ignored = target < 0;
    args.loss[r] = ignored ? 0.0 : static_cast<double>(RowLoss(logits, args.V, target));
    if (!args.backward) continue;
    if (ignored) {
      for (int64_t v = 0; v < args.V; ++v) logits[v] = T(0);
    } else {
      RowGradient(logits, args.V, target, args.scale);
    }
  }
}

}  // namespace heed::reference
