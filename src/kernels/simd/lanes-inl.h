// Arrays of any length in vectors: whole ones, then a part of one. Included once per instruction
// set, inside the sources of kernels.
#if defined(HEED_KERNELS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_LANES_INL_H_
#undef HEED_KERNELS_SIMD_LANES_INL_H_
#else
#define HEED_KERNELS_SIMD_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

HWY_INLINE FloatVec Set(float x) { return hn::Set(FloatTag(), x); }

// A whole vector at p.
struct Whole {
  HWY_INLINE size_t count() const { return hn::Lanes(FloatTag()); }
  HWY_INLINE FloatVec Load(const float* p) const { return hn::LoadU(FloatTag(), p); }
  // From bfloat16.
  HWY_INLINE FloatVec Load(const uint16_t* p) const {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> halves;
    return hn::PromoteTo(FloatTag(),
                         hn::LoadU(halves, reinterpret_cast<const hwy::bfloat16_t*>(p)));
  }
  HWY_INLINE void Store(FloatVec v, float* p) const { hn::StoreU(v, FloatTag(), p); }
  HWY_INLINE FloatVec Keep(FloatVec v, FloatVec) const { return v; }
};

// The first n lanes of a vector at p; nothing beyond them is read or written.
struct Part {
  size_t n;

  HWY_INLINE size_t count() const { return n; }
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
  HWY_INLINE FloatVec Load(const uint16_t* p) const {
    uint16_t lanes[hn::MaxLanes(FloatTag())] = {};
    std::memcpy(lanes, p, n * sizeof(*p));
    return Whole().Load(lanes);
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

// ---- Narrow rows: one row in each lane, so that a few channels still fill the vectors.

// Rows of up to this many numbers are worth turning.
inline constexpr size_t kShortRow = 16;

// columns[c·N + l] = rows[l·C + c] for `count` <= N dense rows of C numbers; the lanes from count
// on repeat the last row.
HWY_INLINE void ReadColumns(const float* rows, size_t count, size_t C, float* columns) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
#if HWY_TARGET != HWY_SCALAR
  if (C >= 4) {
    const hn::RepartitionToWide<hn::RebindToUnsigned<FloatTag>> pairs;
    const FloatVec lane = hn::Iota(d, 0);
    // Four channels at a time; the last four may overlap those before.
    for (size_t at = 0; at < C; at += 4) {
      const size_t c = std::min(at, C - 4);
      FloatVec part[4];  // block g of part[r] holds row 4g + r
      for (size_t r = 0; r < 4; ++r) {
        part[r] = hn::LoadDup128(d, rows + std::min(r, count - 1) * C + c);
        for (size_t g = 1; g < N / 4; ++g) {
          const float* row = rows + std::min(4 * g + r, count - 1) * C + c;
          part[r] = hn::IfThenElse(hn::Ge(lane, Set(4.0f * g)), hn::LoadDup128(d, row), part[r]);
        }
      }
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, part[0], part[1]));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, part[2], part[3]));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, part[0], part[1]));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, part[2], part[3]));
      float* to = columns + c * N;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + N);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * N);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * N);
    }
    return;
  }
  if (C == 2 && count == N) {
    FloatVec first, second;
    hn::LoadInterleaved2(d, rows, first, second);
    hn::Store(first, d, columns);
    hn::Store(second, d, columns + N);
    return;
  }
#endif
  for (size_t l = 0; l < N; ++l) {
    for (size_t c = 0; c < C; ++c) columns[c * N + l] = rows[std::min(l, count - 1) * C + c];
  }
}

// The way back: rows[l·C + c] = columns[c·N + l] for l < count.
HWY_INLINE void WriteColumns(const float* columns, size_t count, size_t C, float* rows) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
#if HWY_TARGET != HWY_SCALAR
  if (C >= 4) {
    const hn::RepartitionToWide<hn::RebindToUnsigned<FloatTag>> pairs;
    HWY_ALIGN float blocks[4 * hn::MaxLanes(FloatTag())];
    for (size_t at = 0; at < C; at += 4) {
      const size_t c = std::min(at, C - 4);
      const float* from = columns + c * N;
      const FloatVec v0 = hn::Load(d, from), v1 = hn::Load(d, from + N);
      const FloatVec v2 = hn::Load(d, from + 2 * N), v3 = hn::Load(d, from + 3 * N);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, blocks);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, blocks + N);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, blocks + 2 * N);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, blocks + 3 * N);
      for (size_t l = 0; l < count; ++l) {
        std::memcpy(rows + l * C + c, blocks + l % 4 * N + l / 4 * 4, 4 * sizeof(float));
      }
    }
    return;
  }
  if (C == 2 && count == N) {
    hn::StoreInterleaved2(hn::Load(d, columns), hn::Load(d, columns + N), d, rows);
    return;
  }
#endif
  for (size_t l = 0; l < count; ++l) {
    for (size_t c = 0; c < C; ++c) rows[l * C + c] = columns[c * N + l];
  }
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_LANES_INL_H_
