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

// e^x with a relative error below 2^-23. Results below 2^-125.5 are 0, those above the largest
// float infinity; NaN stays NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  // Comparisons and not Min and Max, which lose NaN on some targets.
  const V highest = hn::Set(d, 89.0f), lowest = hn::Set(d, -87.33f);
  x = hn::IfThenElse(hn::Gt(x, highest), highest, x);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 · 2^23 rounds n to an integer in the low bits
  // of the sum; the 126 makes these the biased exponent of 2^(n-1). ln 2 is split so that n times
  // its upper part is exact.
  const V magic = hn::Set(d, 0x1.8p23f + 126);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.442695041f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // 2 e^r: minimax of degree 6 with the first two terms exact, relative error 3.1e-9. It is doubled
  // so that the power of two that is left, 2^(n-1), is a float for every finite result.
  V p = hn::Set(d, 0x1.6a2434p-9f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.1239e2p-6f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-4f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555492p-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// 2^x with a relative error below 2^-23; results below 2^-125.5 are 0, those above the largest
// float infinity. In place of Exp where x can be scaled beforehand: the fraction of x is exact.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  // Most instruction sets keep a NaN that is second.
  x = hn::Min(hn::Set(d, 129.0f), hn::Max(hn::Set(d, -126.0f), x));
  // As in Exp, with r in [-1/2, 1/2] and the coefficients times powers of ln 2: error 4.2e-9.
  const V magic = hn::Set(d, 0x1.8p23f + 126);
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(d, 0x1.414ebcp-12f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5f03ecp-9f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.3b2e0cp-6f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.c6af8ap-4f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ebfbdcp-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.62e43p0f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}
inline constexpr float kLog2E = 1.442695041f;

// The natural logarithm of a normal positive number, to a few ulp of the larger of it and 1.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Log(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)).
  const auto bits = hn::BitCast(di, x);
  const auto n = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(n)));
  // log m = 2 artanh s, s = (m - 1) / (m + 1); what is cut off the series is below 2^-29 s.
  const V s = hn::Div(hn::Sub(m, hn::Set(d, 1.0f)), hn::Add(m, hn::Set(d, 1.0f)));
  const V s2 = hn::Mul(s, s);
  V p = hn::Set(d, 2.0f / 9);
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 7));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 5));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 3));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f));
  return hn::MulAdd(hn::ConvertTo(d, n), hn::Set(d, 0.69314718f), hn::Mul(p, s));
}

// s = 1 / (1 + e) and rest = 1 - s, each to a few ulp however small: with e = e^-x the sigmoid of
// x.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void SigmoidPair(D d, V e, V& s, V& rest) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V one = hn::Set(d, 1.0f);
  s = hn::Div(one, hn::Add(one, e));
  // 1 - s = e·s; where e is bounded, s is 0: the bound keeps 0 · infinity away.
  rest = hn::Mul(hn::Min(e, hn::Set(d, 0x1p126f)), s);
}

template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  V s, rest;
  SigmoidPair(d, Exp(d, hwy::HWY_NAMESPACE::Neg(x)), s, rest);
  return s;
}

// The tanh form of GELU (Hendrycks, Gimpel 2016) is x·sigmoid(2u) with u = sqrt(2/pi)·(x +
// 0.044715 x³), because (1 + tanh u) / 2 = sigmoid(2u); this keeps the digits of the left tail.
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.07135481282691803f;  // 2 sqrt(2/pi) · 0.044715

// y = gelu(x) and dy = gelu'(x) = s + x·s·(1 - s)·(2u)', s = sigmoid(2u).
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void GeluWithDerivative(D d, V x, V& y, V& dy) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V x2 = hn::Mul(x, x);
  const V slope =
      hn::NegMulAdd(hn::Set(d, kGeluCubic * kLog2E), x2, hn::Set(d, -kGeluLinear * kLog2E));
  V s, one_minus_s;
  SigmoidPair(d, Exp2(d, hn::Mul(x, slope)), s, one_minus_s);  // 2^(x · slope) = e^-2u
  y = hn::Mul(x, s);
  // Where x² is bounded s·(1 - s) is 0: no 0 · infinity here either.
  const V bounded = hn::Min(x2, hn::Set(d, 1e4f));
  const V derivative = hn::MulAdd(hn::Set(d, 3 * kGeluCubic), bounded, hn::Set(d, kGeluLinear));
  dy = hn::MulAdd(hn::Mul(y, one_minus_s), derivative, s);
}

// The y of GeluWithDerivative, to the bit.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  V y, dy;
  GeluWithDerivative(d, x, y, dy);
  return y;
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_MATH_INL_H_
