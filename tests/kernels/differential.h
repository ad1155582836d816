// What the differential tests of kernels share.
#pragma once

#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "support/compare.h"
#include "support/targets.h"

namespace heed {

// RandomArray whose numbers are floats, so that every number type holds the same ones.
template <class T>
std::vector<T> FloatArray(int64_t n, uint32_t stream, double scale = 1.0) {
  return Cast<T>(RandomArray<float>(n, stream, scale));
}

// Multiples of 1/16 up to some 4 in size: their sums are exact in float in any order.
template <class T>
std::vector<T> ExactArray(int64_t n, uint32_t stream) {
  std::vector<T> out;
  for (const float x : RandomArray<float>(n, stream)) {
    out.push_back(static_cast<T>(std::nearbyint(x * 16) / 16));
  }
  return out;
}

// Whether `result()` is the same with 1, 2, 3 and 8 threads, for every instruction set.
template <class Result>
bool SameForAnyTeam(const Result& result) {
  bool same = true;
  ForEachTarget([&] {
    SetNumThreads(1);
    const auto want = result();
    for (int threads : {2, 3, 8}) {
      SetNumThreads(threads);
      same = same && result() == want;
    }
  });
  SetNumThreads(HardwareThreads());
  return same;
}

}  // namespace heed
