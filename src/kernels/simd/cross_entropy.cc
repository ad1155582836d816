#include "kernels/simd/cross_entropy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/cross_entropy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/math-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

// The largest of n > 0 numbers; which one a NaN gives does not matter, for it reaches the sum.
float Max(const float* x, size_t n) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
  const FloatVec least = Set(-std::numeric_limits<float>::infinity());
  FloatVec most[4] = {least, least, least, least};
  size_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    for (size_t u = 0; u < 4; ++u) most[u] = hn::Max(most[u], hn::LoadU(d, x + i + u * N));
  }
  ForVectors(n - i, [&](size_t j, auto lanes) HWY_ATTR {
    most[0] = hn::Max(most[0], lanes.Keep(lanes.Load(x + i + j), least));
  });
  const FloatVec all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// Sum of exp(x - max) over n numbers; with kKeep the terms take the numbers' place. In double from
// block to block, so that a large vocabulary costs no digits.
template <bool kKeep>
double SumExp(float* x, size_t n, float max) {
  constexpr size_t kBlock = 2048;
  const FloatVec shift = Set(max);
  double total = 0;
  for (size_t at = 0; at < n; at += kBlock) {
    float* block = x + at;
    double sum;
    SumVectors<1>(std::min(kBlock, n - at), &sum, [&](size_t i, auto lanes, FloatVec* s) HWY_ATTR {
      const FloatVec e = Exp(FloatTag(), hn::Sub(lanes.Load(block + i), shift));
      if constexpr (kKeep) lanes.Store(e, block + i);
      s[0] = hn::Add(s[0], e);
    });
    total += sum;
  }
  return total;
}

void CrossEntropyRow(const CrossEntropyArgs<>& args, int64_t r) {
  const size_t V = args.V;
  float* logits = args.logits + r * args.V;
  const int32_t target = args.targets[r];
  if (target < 0) {
    args.loss[r] = 0;
    if (args.backward) std::memset(logits, 0, V * sizeof(float));
    return;
  }
  const float max = Max(logits, V);
  const double margin = static_cast<double>(max) - logits[target];
  const double sum = args.backward ? SumExp<true>(logits, V, max) : SumExp<false>(logits, V, max);
  args.loss[r] = std::log(sum) + margin;
  if (!args.backward) return;
  const FloatVec factor = Set(static_cast<float>(args.scale / sum));
  ForVectors(V, [&](size_t i, auto lanes)
                    HWY_ATTR { lanes.Store(hn::Mul(lanes.Load(logits + i), factor), logits + i); });
  logits[target] -= args.scale;
}

// As many rows of a narrow vocabulary as there are lanes, one in each.
void CrossEntropyColumns(const CrossEntropyArgs<>& args, int64_t first, size_t count) {
  constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());
  const FloatTag d;
  const size_t V = args.V, N = hn::Lanes(d);
  float* logits = args.logits + first * args.V;
  const int32_t* targets = args.targets + first;
  HWY_ALIGN float x[kShortRow * kMaxLanes], maxima[kMaxLanes], sums[kMaxLanes];
  ReadColumns(logits, count, V, x);
  FloatVec max = Set(-std::numeric_limits<float>::infinity()), sum = hn::Zero(d);
  for (size_t c = 0; c < V; ++c) max = hn::Max(max, hn::Load(d, x + c * N));
  for (size_t c = 0; c < V; ++c) {
    const FloatVec e = Exp(d, hn::Sub(hn::Load(d, x + c * N), max));
    sum = hn::Add(sum, e);
    hn::Store(e, d, x + c * N);
  }
  hn::Store(max, d, maxima);
  hn::Store(sum, d, sums);
  for (size_t l = 0; l < count; ++l) {
    args.loss[first + l] = targets[l] < 0
                               ? 0
                               : std::log(static_cast<double>(sums[l])) +
                                     (static_cast<double>(maxima[l]) - logits[l * V + targets[l]]);
  }
  if (!args.backward) return;
  const FloatVec factor = hn::Div(Set(args.scale), sum);
  for (size_t c = 0; c < V; ++c) {
    hn::Store(hn::Mul(hn::Load(d, x + c * N), factor), d, x + c * N);
  }
  WriteColumns(x, count, V, logits);
  for (size_t l = 0; l < count; ++l) {
    if (targets[l] < 0) {
      std::memset(logits + l * V, 0, V * sizeof(float));
    } else {
      logits[l * V + targets[l]] -= args.scale;
    }
  }
}

void CrossEntropy(const CrossEntropyArgs<>& args) {
  const Split split = SplitRows(args.rows, args.V);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    if (args.V <= static_cast<int64_t>(kShortRow)) {
      const int64_t begin = split.begin(piece);
      return ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR {
        CrossEntropyColumns(args, begin + i, lanes.count());
      });
    }
    for (int64_t r = split.begin(piece); r < split.end(piece); ++r) CrossEntropyRow(args, r);
  });
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(CrossEntropy);

void CrossEntropy(const CrossEntropyArgs<>& args) { HWY_DYNAMIC_DISPATCH(CrossEntropy)(args); }

}  // namespace heed::simd
#endif  // HWY_ONCE
