// Arrays of any length in vectors: whole ones, then a part of one. Included once per instruction
// set, inside the sources of kernels.
#if defined(HEED_KERNELS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_LANES_INL_H_
#undef HEED_KERNELS_SIMD_LANES_INL_H_
#else
#define HEED_KERNELS_SIMD_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

HWY_INLINE FloatVec Set(float x) { return hn::Set(FloatTag(), x); }

// A whole vector at p.
struct Whole {
  HWY_INLINE FloatVec Load(const float* p) const { return hn::LoadU(FloatTag(), p); }
  HWY_INLINE void Store(FloatVec v, float* p) const { hn::StoreU(v, FloatTag(), p); }
  HWY_INLINE FloatVec Keep(FloatVec v, FloatVec) const { return v; }
};

// The first n lanes of a vector at p; nothing beyond them is read or written.
struct Part {
  size_t n;

  // Lanes from n on are 0.
  HWY_INLINE FloatVec Load(const float* p) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#else  // elsewhere a masked load may read the whole vector
    HWY_ALIGN float lanes[hn::MaxLanes(FloatTag())] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return hn::Load(d, lanes);
#endif
  }
  HWY_INLINE void Store(FloatVec v, float* p) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#else
    HWY_ALIGN float lanes[hn::MaxLanes(FloatTag())];
    hn::Store(v, d, lanes);
    std::memcpy(p, lanes, n * sizeof(float));
#endif
  }
  // v with `other` in the lanes from n on.
  HWY_INLINE FloatVec Keep(FloatVec v, FloatVec other) const {
    return hn::IfThenElse(hn::FirstN(FloatTag(), n), v, other);
  }
};

// body(i, lanes) for the vectors at 0, N, 2N, .. of n numbers.
template <class Body>
HWY_INLINE void ForVectors(size_t n, const Body& body) {
  const size_t N = hn::Lanes(FloatTag());
  size_t i = 0;
  for (; i + N <= n; i += N) body(i, Whole());
  if (i < n) body(i, Part{n - i});
}

// K sums over n numbers: body(i, lanes, sums) adds to the vectors sums[0] .. sums[K - 1] the terms
// of the numbers at i; terms beyond the array are dropped. Several chains of additions run side by
// side, which also keeps their rounding small.
template <size_t K, class Body>
HWY_INLINE void SumVectors(size_t n, double* sums, const Body& body) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
  constexpr size_t kChains = K == 1 ? 4 : 2;
  FloatVec chains[kChains][K];
  for (size_t u = 0; u < kChains; ++u) {
    for (size_t k = 0; k < K; ++k) chains[u][k] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + kChains * N <= n; i += kChains * N) {
    for (size_t u = 0; u < kChains; ++u) body(i + u * N, Whole(), chains[u]);
  }
  for (; i + N <= n; i += N) body(i, Whole(), chains[0]);
  if (i < n) {
    const Part part{n - i};
    FloatVec last[K];
    for (size_t k = 0; k < K; ++k) last[k] = hn::Zero(d);
    body(i, part, last);
    for (size_t k = 0; k < K; ++k) {
      chains[1][k] = hn::Add(chains[1][k], part.Keep(last[k], hn::Zero(d)));
    }
  }
  for (size_t k = 0; k < K; ++k) {
    FloatVec sum = hn::Add(chains[0][k], chains[1][k]);
    for (size_t u = 2; u < kChains; ++u) sum = hn::Add(sum, chains[u][k]);
    sums[k] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_LANES_INL_H_
