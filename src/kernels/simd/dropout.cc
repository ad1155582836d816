#include "kernels/simd/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/dropout.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/random-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

void Dropout(float* x, int64_t n, uint64_t first, const DropoutArgs& args) {
  // A uniform number is k / 2^24, so that k / 2^24 >= p is k >= ceil(2^24 p), exactly.
  const int32_t least = static_cast<int32_t>(std::ceil(args.p * 0x1p24));
  const float scale = static_cast<float>(1.0 / (1.0 - args.p));
  const Split split = SplitNumbers(n);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    constexpr size_t kBatch = 1024;
    // Up to three words before the batch, and a group and a vector that reach over its end.
    HWY_ALIGN uint32_t words[kBatch + 64];
    const hn::ScalableTag<uint32_t> du;
    const hn::ScalableTag<int32_t> di;
    const auto below = hn::Set(di, least - 1);
    const FloatVec factor = Set(scale);
    for (int64_t at = split.begin(piece); at < split.end(piece); at += kBatch) {
      const size_t count = std::min<int64_t>(kBatch, split.end(piece) - at);
      const uint64_t index = first + at;
      const size_t skip = index % 4;
      RandomWords(args.key, index / 4, (skip + count + 3) / 4, words);
      float* batch = x + at;
      ForVectors(count, [&](size_t i, auto lanes) HWY_ATTR {
        const auto k = hn::ShiftRight<8>(hn::LoadU(du, words + skip + i));
        const auto keep = hn::Gt(hn::BitCast(di, k), below);
        const FloatVec kept = hn::Mul(lanes.Load(batch + i), factor);
        lanes.Store(hn::IfThenElseZero(hn::RebindMask(FloatTag(), keep), kept), batch + i);
      });
    }
  });
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(Dropout);

void Dropout(float* x, int64_t n, uint64_t first, const DropoutArgs& args) {
  HWY_DYNAMIC_DISPATCH(Dropout)(x, n, first, args);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
