// e^x for vectors of float. Included once per instruction set, inside the sources of kernels.
#if defined(HEED_KERNELS_SIMD_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_EXP_INL_H_
#undef HEED_KERNELS_SIMD_EXP_INL_H_
#else
#define HEED_KERNELS_SIMD_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// e^x within 2 units in the last place; 0 where e^x is below 2^-126.5, infinite above 2^127.5, NaN
// for NaN. x = q ln 2 + r with |r| <= ln(2) / 2, and e^r = 1 + r + r² P(r) with P a polynomial of
// degree 4 fitted to the least largest relative error, 4e-9.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::Rebind<int32_t, D> di;
  // Beyond these q would leave the exponent's bits; q = -127 scales by 0 and q = 128 by infinity.
  // Comparisons, for min and max may swallow a NaN.
  const V least = hn::Set(d, -88.0f), most = hn::Set(d, 89.0f);
  x = hn::IfThenElse(hn::Lt(x, least), least, x);
  x = hn::IfThenElse(hn::Gt(x, most), most, x);
  const auto q = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const V qf = hn::ConvertTo(d, q);
  // ln 2 in two parts, the first of 16 bits so that its product with q is exact.
  V r = hn::NegMulAdd(qf, hn::Set(d, 0x1.62e4p-1f), x);
  r = hn::NegMulAdd(qf, hn::Set(d, 1.42860682e-6f), r);
  V p = hn::Set(d, 0.00138144672f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836878084f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683927f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665196f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999994f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  const V scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(q, hn::Set(di, 127))));
  return hn::MulAdd(scale, p, scale);
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_EXP_INL_H_
