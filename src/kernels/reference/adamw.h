// AdamW (Loshchilov, Hutter 2019): Adam with decay that does not pass through the moments.
#pragma once

#include <cmath>

#include "kernels/args.h"
#include "kernels/reference/wide.h"

namespace heed::reference {

template <class T>
void Adamw(const AdamwArgs<T>& args) {
  using std::sqrt;
  const double correction1 = 1.0 - std::pow(args.beta1, args.step);
  const double correction2 = 1.0 - std::pow(args.beta2, args.step);
  for (int64_t i = 0; i < args.n; ++i) {
    const Wide<T> g = args.grad_scale * args.grad[i];
    const Wide<T> m = args.beta1 * args.m[i] + (1.0 - args.beta1) * g;
    const Wide<T> v = args.beta2 * args.v[i] + (1.0 - args.beta2) * g * g;
    const Wide<T> step = (m / correction1) / (sqrt(v / correction2) + args.eps);
    const Wide<T> decayed = args.param[i] * (1.0 - args.learning_rate * args.weight_decay);
    args.param[i] = static_cast<T>(decayed - args.learning_rate * step);
    args.m[i] = static_cast<T>(m);
    args.v[i] = static_cast<T>(v);
  }
}

}  // namespace heed::reference
