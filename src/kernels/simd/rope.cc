#include "kernels/simd/rope.h"

#include <algorithm>

#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Turns the pairs of one head; sign is -1 to turn back. Channels past the last whole vector of
// pairs go one by one.
template <bool kInterleaved>
HWY_INLINE void TurnHead(float* x, const float* cos, const float* sin, float sign, int64_t half) {
  const hn::ScalableTag<float> d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const auto signs = hn::Set(d, sign);
  int64_t i = 0;
  for (; i + N <= half; i += N) {
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::Mul(hn::LoadU(d, sin + i), signs);
    hn::Vec<decltype(d)> x0, x1;
    if constexpr (kInterleaved) {
      hn::LoadInterleaved2(d, x + 2 * i, x0, x1);
    } else {
      x0 = hn::LoadU(d, x + i);
      x1 = hn::LoadU(d, x + half + i);
    }
    const auto turned0 = hn::NegMulAdd(x1, s, hn::Mul(x0, c));
    const auto turned1 = hn::MulAdd(x0, s, hn::Mul(x1, c));
    if constexpr (kInterleaved) {
      hn::StoreInterleaved2(turned0, turned1, d, x + 2 * i);
    } else {
      hn::StoreU(turned0, d, x + i);
      hn::StoreU(turned1, d, x + half + i);
    }
  }
  for (; i < half; ++i) {
    float& x0 = kInterleaved ? x[2 * i] : x[i];
    float& x1 = kInterleaved ? x[2 * i + 1] : x[half + i];
    const float s = sin[i] * sign, turned0 = x0 * cos[i] - x1 * s;
    x1 = x0 * s + x1 * cos[i];
    x0 = turned0;
  }
}

void TurnRows(const RopeArgs<>& a, int64_t first, int64_t last) {
  const float sign = a.inverse ? -1.0f : 1.0f;
  for (int64_t r = first; r < last; ++r) {
    const int64_t position = (a.offsets ? a.offsets[r / a.T_] : a.offset) + r % a.T_;
    const float* cos = a.cos + position * a.half;
    const float* sin = a.sin + position * a.half;
    float* x = a.x + r * a.row;
    for (int64_t h = 0; h < a.heads; ++h, x += a.D) {
      if (a.interleaved) {
        TurnHead<true>(x, cos, sin, sign, a.half);
      } else {
        TurnHead<false>(x, cos, sin, sign, a.half);
      }
    }
  }
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {
namespace {
HWY_EXPORT(TurnRows);
}  // namespace

void Rope(const RopeArgs<>& a) {
  // Some microseconds of work to a piece.
  constexpr int64_t kPairs = 8192;
  const int64_t rows = a.B * a.T_;
  const int64_t size = std::max<int64_t>(1, kPairs / std::max<int64_t>(1, a.heads * a.half));
  ParallelFor((rows + size - 1) / size, [&](int64_t piece) {
    HWY_DYNAMIC_DISPATCH(TurnRows)(a, piece * size, std::min(rows, (piece + 1) * size));
  });
}

}  // namespace heed::simd
#endif
