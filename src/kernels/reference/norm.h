// LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019), row by row.
#pragma once

#include <cmath>

#include "kernels/args.h"
#include "kernels/reference/wide.h"

namespace heed::reference {

// y = xhat · gain + bias with xhat = (x - mean) · rstd and the row's stored mean and rstd.
template <class T>
void NormApply(const NormArgs<T>& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.C; ++c) {
      const int64_t i = r * args.C + c;
      const T centred = args.rms ? args.x[i] : args.x[i] - args.mean[r];
      const T scaled = centred * args.rstd[r] * args.gain[c];
      args.y[i] = args.bias == nullptr ? scaled : scaled + args.bias[c];
    }
  }
}

template <class T>
void NormForward(const NormArgs<T>& args) {
  using std::sqrt;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* x = args.x + r * args.C;
    Wide<T> mean = 0;
    if (!args.rms) {
      for (int64_t c = 0; c < args.C; ++c) mean += x[c];
      mean /= args.C;
      args.mean[r] = static_cast<T>(mean);
    }
    Wide<T> variance = 0;  // around 0 for rms
    for (int64_t c = 0; c < args.C; ++c) variance += (x[c] - mean) * (x[c] - mean);
    variance /= args.C;
    args.rstd[r] = static_cast<T>(1.0 / sqrt(variance + args.eps));
  }
  NormApply(args);
}

// With g = dy · gain:  dx += rstd · (g - mean(g) - xhat · mean(g · xhat)), without mean(g) for rms;
// dgain = sum over rows of dy · xhat,  dbias = sum over rows of dy.
template <class T>
void NormBackward(const NormArgs<T>& args) {
  const auto xhat = [&](int64_t r, int64_t c) {
    const T x = args.x[r * args.C + c];
    return (args.rms ? x : x - args.mean[r]) * args.rstd[r];
  };
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* dy = args.dy + r * args.C;
    Wide<T> mean_g = 0, mean_g_xhat = 0;
    for (int64_t c = 0; c < args.C; ++c) {
      const Wide<T> g = dy[c] * args.gain[c];
      if (!args.rms) mean_g += g;
      mean_g_xhat += g * xhat(r, c);
    }
    mean_g /= args.C;
    mean_g_xhat /= args.C;
    for (int64_t c = 0; c < args.C; ++c) {
      const Wide<T> g = dy[c] * args.gain[c];
      args.dx[r * args.C + c] +=
          static_cast<T>(args.rstd[r] * (g - mean_g - xhat(r, c) * mean_g_xhat));
    }
  }
  for (int64_t c = 0; c < args.C; ++c) {
    Wide<T> dgain = 0, dbias = 0;
    for (int64_t r = 0; r < args.rows; ++r) {
      const T dy = args.dy[r * args.C + c];
      dgain += dy * xhat(r, c);
      dbias += dy;
    }
    if (args.accumulate) dgain += args.dgain[c];
    args.dgain[c] = static_cast<T>(dgain);
    if (args.dbias == nullptr) continue;
    if (args.accumulate) dbias += args.dbias[c];
    args.dbias[c] = static_cast<T>(dbias);
  }
}

}  // namespace heed::reference
