#include "kernels/simd/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/swiglu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/math-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

void SwigluForward(const SwigluArgs<>& args) {
  const Split split = SplitNumbers(args.n);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    const float* gate = args.gate + split.begin(piece);
    const float* up = args.up + split.begin(piece);
    float* h = args.h + split.begin(piece);
    ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR {
      const FloatVec x = lanes.Load(gate + i);
      lanes.Store(hn::Mul(hn::Mul(x, Sigmoid(FloatTag(), x)), lanes.Load(up + i)), h + i);
    });
  });
}

void SwigluBackward(const SwigluArgs<>& args) {
  const Split split = SplitNumbers(args.n);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    float* gates = args.gate + split.begin(piece);
    float* ups = args.up + split.begin(piece);
    float* h = args.h + split.begin(piece);
    const float* dhs = args.dh + split.begin(piece);
    ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR {
      const FloatVec gate = lanes.Load(gates + i), up = lanes.Load(ups + i);
      const FloatVec dh = lanes.Load(dhs + i);
      FloatVec sigmoid, rest;
      SigmoidPair(FloatTag(), Exp(FloatTag(), hn::Neg(gate)), sigmoid, rest);
      const FloatVec silu = hn::Mul(gate, sigmoid);
      const FloatVec slope = hn::Mul(sigmoid, hn::MulAdd(gate, rest, Set(1.0f)));
      lanes.Store(hn::Mul(silu, up), h + i);
      lanes.Store(hn::Mul(hn::Mul(dh, up), slope), gates + i);
      lanes.Store(hn::Mul(dh, silu), ups + i);
    });
  });
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(SwigluForward);
HWY_EXPORT(SwigluBackward);

void SwigluForward(const SwigluArgs<>& args) { HWY_DYNAMIC_DISPATCH(SwigluForward)(args); }
void SwigluBackward(const SwigluArgs<>& args) { HWY_DYNAMIC_DISPATCH(SwigluBackward)(args); }

}  // namespace heed::simd
#endif  // HWY_ONCE
