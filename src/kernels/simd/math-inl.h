// Elementary functions on vectors of float, compiled once per instruction set. A multiplication
// that feeds an addition is written as MulAdd, so that no compiler chooses where to round.

#if defined(HEED_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_MATH_INL_H_
#undef HEED_KERNELS_SIMD_MATH_INL_H_
#else
#define HEED_KERNELS_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

// e^x to 1 ulp. Results below 2^-125.5 are 0, above the largest float infinity; NaN stays NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split so that n times its upper part is exact.
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const auto n = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.442695041f)));
  const V nf = hn::ConvertTo(d, n);
  V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  // 2 e^r: minimax of degree 6 with the first two terms exact, relative error 3.1e-9. It is doubled
  // so that the power of two that is left, 2^(n-1), is a float for every finite result.
  V p = hn::Set(d, 0x1.6a2434p-9f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.1239e2p-6f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-4f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555492p-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.0f));
  const auto exponent = hn::Max(hn::Add(n, hn::Set(di, 126)), hn::Zero(di));
  const V y = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// s = 1 / (1 + e^-x) and 1 - s, each to a few ulp however small: only e^-|x| <= 1 is formed.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void SigmoidPair(D d, V x, V& s, V& one_minus_s) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V one = hn::Set(d, 1.0f);
  const V e = Exp(d, hn::Neg(hn::Abs(x)));
  const V larger = hn::Div(one, hn::Add(one, e));
  const V smaller = hn::Mul(e, larger);
  const auto negative = hn::Lt(x, hn::Zero(d));
  s = hn::IfThenElse(negative, smaller, larger);
  one_minus_s = hn::IfThenElse(negative, larger, smaller);
}

template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  V s, one_minus_s;
  SigmoidPair(d, x, s, one_minus_s);
  return s;
}

// The tanh form of GELU (Hendrycks, Gimpel 2016) is x·sigmoid(2u) with u = sqrt(2/pi)·(x +
// 0.044715 x³), because (1 + tanh u) / 2 = sigmoid(2u); this keeps the digits of the left tail.
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.07135481282691803f;  // 2 sqrt(2/pi) · 0.044715

template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V slope = hn::MulAdd(hn::Set(d, kGeluCubic), hn::Mul(x, x), hn::Set(d, kGeluLinear));
  return hn::Mul(x, Sigmoid(d, hn::Mul(x, slope)));
}

// y = gelu(x), the same bits as Gelu, and dy = gelu'(x) = s + x·s·(1 - s)·(2u)'.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void GeluWithDerivative(D d, V x, V& y, V& dy) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V linear = hn::Set(d, kGeluLinear), x2 = hn::Mul(x, x);
  const V slope = hn::MulAdd(hn::Set(d, kGeluCubic), x2, linear);
  V s, one_minus_s;
  SigmoidPair(d, hn::Mul(x, slope), s, one_minus_s);
  y = hn::Mul(x, s);
  // s·(1 - s) is 0 long before |x| = 100: the bound keeps 0 · infinity away.
  const V bounded = hn::Min(x2, hn::Set(d, 1e4f));
  const V derivative = hn::MulAdd(hn::Set(d, 3 * kGeluCubic), bounded, linear);
  dy = hn::MulAdd(hn::Mul(y, one_minus_s), derivative, s);
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_MATH_INL_H_
