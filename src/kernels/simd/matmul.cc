#include "kernels/simd/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/matmul.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/simd/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

void MatmulTarget(const MatmulArgs<>& args) { Multiply<FloatEngine>(args); }

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(MatmulTarget);

void Matmul(const MatmulArgs<>& args) {
  if (args.arithmetic == Arithmetic::kBf16) return MatmulBf16(args);
  HWY_DYNAMIC_DISPATCH(MatmulTarget)(args);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
