#include "kernels/simd/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

// Everything is written as old + (small · difference): 1 - beta and lr · weight_decay keep their
// digits as floats, beta and 1 - lr · weight_decay near 1 would not.
void Adamw(const AdamwArgs<>& args) {
  const double correction1 = 1.0 - std::pow(args.beta1, args.step);
  const double correction2 = 1.0 - std::pow(args.beta2, args.step);
  const float take1 = static_cast<float>(1.0 - args.beta1);
  const float take2 = static_cast<float>(1.0 - args.beta2);
  const float rate = static_cast<float>(args.learning_rate / correction1);
  const float unbias2 = static_cast<float>(1.0 / correction2);
  const float decay = static_cast<float>(args.learning_rate * args.weight_decay);
  const float eps = static_cast<float>(args.eps);
  const float grad_scale = static_cast<float>(args.grad_scale);
  const Split split = SplitNumbers(args.n);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    float* params = args.param + split.begin(piece);
    float* ms = args.m + split.begin(piece);
    float* vs = args.v + split.begin(piece);
    const float* grads = args.grad + split.begin(piece);
    ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR {
      const FloatVec g = hn::Mul(lanes.Load(grads + i), Set(grad_scale));
      FloatVec m = lanes.Load(ms + i), v = lanes.Load(vs + i), param = lanes.Load(params + i);
      m = hn::MulAdd(Set(take1), hn::Sub(g, m), m);
      v = hn::MulAdd(Set(take2), hn::MulSub(g, g, v), v);
      const FloatVec root = hn::Add(hn::Sqrt(hn::Mul(v, Set(unbias2))), Set(eps));
      const FloatVec change = hn::MulAdd(param, Set(decay), hn::Div(hn::Mul(m, Set(rate)), root));
      lanes.Store(hn::Sub(param, change), params + i);
      lanes.Store(m, ms + i);
      lanes.Store(v, vs + i);
    });
  });
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(Adamw);

void Adamw(const AdamwArgs<>& args) { HWY_DYNAMIC_DISPATCH(Adamw)(args); }

}  // namespace heed::simd
#endif  // HWY_ONCE
