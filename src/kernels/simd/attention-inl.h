// What every form of attention computes with: exponentials, dropout factors, the softmax's
// denominator. Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_ATTENTION_INL_H_
#undef HEED_KERNELS_SIMD_ATTENTION_INL_H_
#else
#define HEED_KERNELS_SIMD_ATTENTION_INL_H_
#endif

#include <cmath>

#include "kernels/simd/attention_rows.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
// Vectors in a row of a register tile: kBlock × kVecs accumulators must fit the register file.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
constexpr int kVecs = 2;
#else
constexpr int kVecs = 4;
#endif

int64_t RoundUp(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// e^x for x up to about 0, within 2 units in the last place; exactly 0 below -87, exactly 1 at 0,
// NaN for NaN. e^r = 1 + r + r² P(r), |r| <= ln(2) / 2, P fitted to the least largest relative
// error, 3.1e-9.
HWY_INLINE Vec Exp(Vec x) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const Vec nf = hn::ConvertTo(d, n);
  // ln 2 in two parts, the first short enough for an exact product.
  Vec r = hn::NegMulAdd(nf, hn::Set(d, 0x1.62e4p-1f), x);
  r = hn::NegMulAdd(nf, hn::Set(d, 1.42860682e-6f), r);
  Vec p = hn::Set(d, 0.001381461318f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008368709928f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041668387370f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665206890f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999934516f));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  const Vec scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  // A comparison, because min and max may swallow a NaN.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::MulAdd(scale, p, scale));
}

// ln x for normal x > 0, to about 1e-7 absolute: a guess from the exponent and a parabola for the
// mantissa, good to 0.007, then a step of Halley's method on e^y = x, which cubes that error.
HWY_INLINE Vec Log(Vec x) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const auto bits = hn::BitCast(di, x);
  const Vec exponent = hn::ConvertTo(d, hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127)));
  const Vec m =
      hn::BitCast(d, hn::Or(hn::And(bits, hn::Set(di, 0x007FFFFF)), hn::Set(di, 0x3F800000)));
  // log2 m is close to -m²/3 + 2m - 5/3, which is exact at 1 and 2.
  const Vec log2m =
      hn::MulAdd(hn::MulAdd(m, hn::Set(d, -1.0f / 3), hn::Set(d, 2.0f)), m, hn::Set(d, -5.0f / 3));
  const Vec guess = hn::Mul(hn::Add(exponent, log2m), hn::Set(d, 0.693147181f));
  const Vec e = Exp(guess);
  return hn::MulAdd(hn::Set(d, 2.0f), hn::Div(hn::Sub(x, e), hn::Add(x, e)), guess);
}

HWY_INLINE float ReduceSum(Vec v) { return hn::GetLane(hn::SumOfLanes(Tag(), v)); }
HWY_INLINE float ReduceMax(Vec v) { return hn::GetLane(hn::MaxOfLanes(Tag(), v)); }

// What dropout multiplies the weights index .. index + n - 1 with, n <= kTile; writes whole
// vectors.
void DropoutFactors(const DropoutArgs& a, int64_t index, int64_t n, float* factors) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  // Room for the words before the first in its block, and behind the last in its group and vector.
  alignas(64) uint32_t words[kTile + 64];
  RandomWords(a.key, static_cast<uint64_t>(index / 4), static_cast<size_t>(index % 4 + n + 3) / 4,
              words);
  const auto* bits = reinterpret_cast<const int32_t*>(words + index % 4);
  // u >= p for the 24-bit u = bits / 2^24, without rounding p.
  const auto least = hn::Set(di, static_cast<int32_t>(std::ceil(a.p * 0x1p24)));
  const Vec kept = hn::Set(d, static_cast<float>(1 / (1 - a.p)));
  for (int64_t j = 0; j < n; j += kLanes) {
    const auto u = hn::BitCast(
        di, hn::ShiftRight<8>(hn::BitCast(hn::RebindToUnsigned<Tag>(), hn::LoadU(di, bits + j))));
    hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(d, hn::Lt(u, least)), kept), d, factors + j);
  }
}

// 1 / total for kLanes rows, and 0 for a row that sees no key.
HWY_INLINE Vec Shares(Vec total) {
  const Tag d;
  return hn::IfThenZeroElse(hn::Eq(total, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), total));
}

// max + ln total, -inf for a row that sees no key.
HWY_INLINE Vec Lse(Vec max, Vec total) {
  const Tag d;
  const auto blind = hn::Eq(total, hn::Zero(d));
  return hn::IfThenElse(blind, hn::Set(d, kHidden), hn::Add(max, Log(total)));
}

// lse of the kLanes rows from r0 on.
void StoreLse(const AttentionArgs<>& a, const Rows& rows, int64_t r0, Vec max, Vec total) {
  if (!a.lse) return;
  alignas(64) float lse[kLanes];
  hn::Store(Lse(max, total), Tag(), lse);
  const int64_t lanes = std::min(kLanes, rows.count - r0);
  for (int64_t l = 0; l < lanes; ++l) a.lse[RowIndex(a, rows, r0 + l)] = lse[l];
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_ATTENTION_INL_H_
