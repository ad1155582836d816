// What the differential tests of kernels share.
#pragma once

#include <algorithm>

#include "base/parallel.h"
#include "support/targets.h"

namespace heed {

// The largest value of `error()` over the instruction sets of this machine.
template <class Error>
double WorstOverTargets(const Error& error) {
  double worst = 0;
  ForEachTarget([&] { worst = std::max(worst, error()); });
  return worst;
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
