// Operations on arrays [n, C, lanes]: n positions of as many sequences as a vector has lanes. The
// weights are scalars. Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_NARROW_INL_H_
#undef HEED_KERNELS_SIMD_NARROW_INL_H_
#else
#define HEED_KERNELS_SIMD_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/narrow.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

inline constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());
// Tiles of products: 16 sums in 32 registers, 8 in 16.
inline constexpr size_t kTilePositions = 4;
inline constexpr size_t kTileOutputs = HWY_TARGET == HWY_AVX2 || HWY_TARGET > HWY_AVX2 ? 2 : 4;

HWY_INLINE FloatVec At(const float* x, size_t i) {
  return hn::Load(FloatTag(), x + i * hn::Lanes(FloatTag()));
}
HWY_INLINE void Put(FloatVec v, float* x, size_t i) {
  hn::Store(v, FloatTag(), x + i * hn::Lanes(FloatTag()));
}
HWY_INLINE void AddTo(FloatVec v, float* x, size_t i) { Put(hn::Add(At(x, i), v), x, i); }

// An array whose rows of vectors are `row` vectors apart.
struct Rows {
  const float* data;
  size_t row;
  HWY_INLINE FloatVec at(size_t t, size_t c) const { return At(data, t * row + c); }
};

// A matrix w(i, o) of scalars.
struct Matrix {
  const float* data;
  size_t in, out, in_step, out_step;
  const float* bias;  // [out], or null
  HWY_INLINE FloatVec at(size_t i, size_t o) const { return Set(data[i * in_step + o * out_step]); }
};

// Calls body(std::integral_constant<size_t, k>(), at) for runs of k = kMost, kMost / 2, .. 1 of n.
template <size_t kMost, class Body>
HWY_INLINE void ForTiles(size_t n, const Body& body) {
  size_t at = 0;
  for (; at + kMost <= n; at += kMost) body(std::integral_constant<size_t, kMost>(), at);
  if constexpr (kMost > 1) {
    ForTiles<kMost / 2>(n - at, [&](auto size, size_t i) HWY_ATTR { body(size, at + i); });
  }
}

template <size_t kT, size_t kO, class Take>
HWY_INLINE void ProductTile(const Matrix& w, const Rows& x, size_t t, size_t o, const Take& take) {
  FloatVec sums[kT][kO];
#pragma GCC unroll 16
  for (size_t v = 0; v < kO; ++v) {
    const FloatVec start = w.bias == nullptr ? hn::Zero(FloatTag()) : Set(w.bias[o + v]);
#pragma GCC unroll 16
    for (size_t u = 0; u < kT; ++u) sums[u][v] = start;
  }
  for (size_t i = 0; i < w.in; ++i) {
    FloatVec inputs[kT];
#pragma GCC unroll 16
    for (size_t u = 0; u < kT; ++u) inputs[u] = x.at(t + u, i);
#pragma GCC unroll 16
    for (size_t v = 0; v < kO; ++v) {
      const FloatVec weight = w.at(i, o + v);
#pragma GCC unroll 16
      for (size_t u = 0; u < kT; ++u) sums[u][v] = hn::MulAdd(inputs[u], weight, sums[u][v]);
    }
  }
#pragma GCC unroll 16
  for (size_t u = 0; u < kT; ++u) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kO; ++v) take(sums[u][v], t + u, o + v);
  }
}

// take(y, t, o) for y = bias + x w at each of n positions and every output.
template <class Take>
HWY_INLINE void Product(const Matrix& w, const Rows& x, size_t n, const Take& take) {
  ForTiles<kTilePositions>(n, [&](auto positions, size_t t) HWY_ATTR {
    ForTiles<kTileOutputs>(w.out, [&](auto outputs, size_t o) HWY_ATTR {
      ProductTile<decltype(positions)::value, decltype(outputs)::value>(w, x, t, o, take);
    });
  });
}

// The gradient of a Linear's weight and bias, a sum in each lane: dw(i, o) += x[t, i] · dy[t, o].
HWY_INLINE void WeightGradient(const NarrowLinear& w, const Rows& x, const Rows& dy, size_t n,
                               float* gradients) {
  ForTiles<kTilePositions>(w.in, [&](auto inputs, size_t i) HWY_ATTR {
    ForTiles<kTileOutputs>(w.out, [&](auto outputs, size_t o) HWY_ATTR {
      constexpr size_t kI = decltype(inputs)::value, kO = decltype(outputs)::value;
      const size_t first = w.weight + i * w.in_step + o * w.out_step;
      FloatVec sums[kI][kO];
#pragma GCC unroll 16
      for (size_t u = 0; u < kI; ++u) {
#pragma GCC unroll 16
        for (size_t v = 0; v < kO; ++v) {
          sums[u][v] = At(gradients, first + u * w.in_step + v * w.out_step);
        }
      }
      for (size_t t = 0; t < n; ++t) {
        FloatVec dys[kO];
#pragma GCC unroll 16
        for (size_t v = 0; v < kO; ++v) dys[v] = dy.at(t, o + v);
#pragma GCC unroll 16
        for (size_t u = 0; u < kI; ++u) {
          const FloatVec input = x.at(t, i + u);
#pragma GCC unroll 16
          for (size_t v = 0; v < kO; ++v) sums[u][v] = hn::MulAdd(input, dys[v], sums[u][v]);
        }
      }
#pragma GCC unroll 16
      for (size_t u = 0; u < kI; ++u) {
#pragma GCC unroll 16
        for (size_t v = 0; v < kO; ++v) {
          Put(sums[u][v], gradients, first + u * w.in_step + v * w.out_step);
        }
      }
    });
  });
  if (w.bias == kNoParameter) return;
  for (size_t o = 0; o < static_cast<size_t>(w.out); ++o) {
    FloatVec sum = At(gradients, w.bias + o);
    for (size_t t = 0; t < n; ++t) sum = hn::Add(sum, dy.at(t, o));
    Put(sum, gradients, w.bias + o);
  }
}

// gain and bias [C]; bias may be null.
struct Scaling {
  const float* gain;
  const float* bias;
  size_t C;
};

HWY_INLINE void ApplyNorm(const Scaling& norm, const float* xhat, size_t n, float* y) {
  for (size_t c = 0; c < norm.C; ++c) {
    const FloatVec gain = Set(norm.gain[c]);
    const FloatVec bias = norm.bias == nullptr ? hn::Zero(FloatTag()) : Set(norm.bias[c]);
    for (size_t t = 0; t < n; ++t) {
      Put(hn::MulAdd(At(xhat, t * norm.C + c), gain, bias), y, t * norm.C + c);
    }
  }
}

// x [n, C] -> xhat [n, C], rstd [n].
HWY_INLINE void Standardize(const float* x, size_t n, size_t C, bool rms, float eps, float* xhat,
                            float* rstd) {
  const FloatTag d;
  const FloatVec share = Set(1.0f / static_cast<float>(C));
  for (size_t t = 0; t < n; ++t) {
    const float* from = x + t * C * hn::Lanes(d);
    float* to = xhat + t * C * hn::Lanes(d);
    FloatVec mean = hn::Zero(d), squares = hn::Zero(d);
    if (!rms) {
      for (size_t c = 0; c < C; ++c) mean = hn::Add(mean, At(from, c));
      mean = hn::Mul(mean, share);
    }
    for (size_t c = 0; c < C; ++c) {
      const FloatVec centred = hn::Sub(At(from, c), mean);
      squares = hn::MulAdd(centred, centred, squares);
    }
    const FloatVec scale = hn::Div(Set(1.0f), hn::Sqrt(hn::MulAdd(squares, share, Set(eps))));
    for (size_t c = 0; c < C; ++c) Put(hn::Mul(hn::Sub(At(from, c), mean), scale), to, c);
    Put(scale, rstd, t);
  }
}

// dx [n, C] = (or, with kAdd, +=) the gradient of Standardize's input, from dy [n, C], that of
// ApplyNorm's output.
template <bool kAdd>
HWY_INLINE void NormBackward(const Scaling& norm, const float* xhat, const float* rstd,
                             const float* dy, size_t n, bool rms, float* dx) {
  const FloatTag d;
  const size_t C = norm.C;
  const FloatVec share = Set(1.0f / static_cast<float>(C));
  for (size_t t = 0; t < n; ++t) {
    const size_t row = t * C;
    FloatVec mean = hn::Zero(d), along = hn::Zero(d);
    for (size_t c = 0; c < C; ++c) {
      const FloatVec g = hn::Mul(At(dy, row + c), Set(norm.gain[c]));
      mean = hn::Add(mean, g);
      along = hn::MulAdd(g, At(xhat, row + c), along);
    }
    mean = rms ? hn::Zero(d) : hn::Mul(mean, share);
    along = hn::Mul(along, share);
    const FloatVec scale = At(rstd, t);
    for (size_t c = 0; c < C; ++c) {
      const FloatVec g = hn::MulSub(At(dy, row + c), Set(norm.gain[c]), mean);
      const FloatVec change = hn::NegMulAdd(At(xhat, row + c), along, g);
      const FloatVec before = kAdd ? At(dx, row + c) : hn::Zero(d);
      Put(hn::MulAdd(change, scale, before), dx, row + c);
    }
  }
}

HWY_INLINE void NormGradient(const NarrowNorm& norm, size_t C, const float* xhat, const float* dy,
                             size_t n, float* gradients) {
  const FloatTag d;
  for (size_t c = 0; c < C; ++c) {
    FloatVec dgain = hn::Zero(d), dbias = hn::Zero(d);
    for (size_t t = 0; t < n; ++t) {
      const FloatVec g = At(dy, t * C + c);
      dgain = hn::MulAdd(g, At(xhat, t * C + c), dgain);
      dbias = hn::Add(dbias, g);
    }
    AddTo(dgain, gradients, norm.gain + c);
    if (norm.bias != kNoParameter) AddTo(dbias, gradients, norm.bias + c);
  }
}

// ---- Attention of one head. q, k, v lie in rows of `row` vectors, scores are in rows of their own
// lengths: query t has t + 1.

struct Head {
  size_t D, row;
  float scale;  // of the scores
  const float* q;
  const float* k;
  const float* v;
  float* weights;  // [T (T + 1) / 2]
  float* inverse;  // [T]
  float* z;        // [T, D] in rows of z_row vectors
  size_t z_row;
};

inline size_t TriangleRow(size_t t) { return t * (t + 1) / 2; }

// Head widths with loops of known length; 0 stands for any.
template <class Body>
HWY_INLINE void ForHeadWidth(size_t D, const Body& body) {
  switch (D) {
    case 1:
      return body(std::integral_constant<size_t, 1>());
    case 2:
      return body(std::integral_constant<size_t, 2>());
    case 4:
      return body(std::integral_constant<size_t, 4>());
    case 8:
      return body(std::integral_constant<size_t, 8>());
    default:
      return body(std::integral_constant<size_t, 0>());
  }
}

template <size_t kD>
HWY_INLINE void Attend(const Head& head, size_t T) {
  const FloatTag d;
  constexpr size_t kMost = kD == 0 ? kNarrowHeadDim : kD;
  const size_t D = kD == 0 ? head.D : kD;
  for (size_t t = 0; t < T; ++t) {
    FloatVec q[kMost], z[kMost];
    for (size_t c = 0; c < D; ++c) {
      q[c] = hn::Mul(At(head.q, t * head.row + c), Set(head.scale * kLog2E));
      z[c] = hn::Zero(d);
    }
    float* weights = head.weights + TriangleRow(t) * hn::Lanes(d);
    FloatVec max = Set(-HUGE_VALF);
    for (size_t s = 0; s <= t; ++s) {
      FloatVec score = hn::Mul(q[0], At(head.k, s * head.row));
      for (size_t c = 1; c < D; ++c) score = hn::MulAdd(q[c], At(head.k, s * head.row + c), score);
      max = hn::Max(max, score);
      Put(score, weights, s);
    }
    FloatVec sum = hn::Zero(d);
    for (size_t s = 0; s <= t; ++s) {
      const FloatVec weight = Exp2(d, hn::Sub(At(weights, s), max));
      sum = hn::Add(sum, weight);
      for (size_t c = 0; c < D; ++c) z[c] = hn::MulAdd(weight, At(head.v, s * head.row + c), z[c]);
      Put(weight, weights, s);
    }
    const FloatVec inverse = hn::Div(Set(1.0f), sum);
    Put(inverse, head.inverse, t);
    for (size_t c = 0; c < D; ++c) Put(hn::Mul(z[c], inverse), head.z, t * head.z_row + c);
  }
}

// dq [T, D] is set, dk and dv are added to, in rows of head.row vectors; dz [T, D] in rows of
// head.z_row. With p = weights · inverse: dv[s] += p dz,  dscore = p (dz·v[s] - dz·z).
template <size_t kD>
HWY_INLINE void AttendBackward(const Head& head, size_t T, const float* dz, float* dq, float* dk,
                               float* dv) {
  const FloatTag d;
  constexpr size_t kMost = kD == 0 ? kNarrowHeadDim : kD;
  const size_t D = kD == 0 ? head.D : kD;
  ForTiles<2>(T, [&](auto queries, size_t first) HWY_ATTR {
    constexpr size_t kQ = decltype(queries)::value;
    FloatVec q[kQ][kMost], g[kQ][kMost], sum[kQ][kMost], minus_mean[kQ];
    const float* weights[kQ];
#pragma GCC unroll 2
    for (size_t u = 0; u < kQ; ++u) {
      const size_t t = first + u;
      weights[u] = head.weights + TriangleRow(t) * hn::Lanes(d);
      const FloatVec inverse = At(head.inverse, t);
      minus_mean[u] = hn::Zero(d);
      for (size_t c = 0; c < D; ++c) {
        q[u][c] = hn::Mul(At(head.q, t * head.row + c), Set(head.scale));
        g[u][c] = hn::Mul(At(dz, t * head.z_row + c), inverse);
        minus_mean[u] = hn::NegMulAdd(g[u][c], At(head.z, t * head.z_row + c), minus_mean[u]);
        sum[u][c] = hn::Zero(d);
      }
    }
    // Key s with the queries first + kFrom and later.
    const auto key = [&](size_t s, auto from) HWY_ATTR {
      const size_t at = s * head.row;
      FloatVec k[kMost], v[kMost], dks[kMost], dvs[kMost];
      for (size_t c = 0; c < D; ++c) {
        k[c] = At(head.k, at + c);
        v[c] = At(head.v, at + c);
        dks[c] = At(dk, at + c);
        dvs[c] = At(dv, at + c);
      }
#pragma GCC unroll 2
      for (size_t u = decltype(from)::value; u < kQ; ++u) {
        const FloatVec weight = At(weights[u], s);
        FloatVec along = minus_mean[u];
        for (size_t c = 0; c < D; ++c) along = hn::MulAdd(g[u][c], v[c], along);
        const FloatVec dscore = hn::Mul(weight, along);
        for (size_t c = 0; c < D; ++c) {
          sum[u][c] = hn::MulAdd(dscore, k[c], sum[u][c]);
          dks[c] = hn::MulAdd(dscore, q[u][c], dks[c]);
          dvs[c] = hn::MulAdd(weight, g[u][c], dvs[c]);
        }
      }
      for (size_t c = 0; c < D; ++c) {
        Put(dks[c], dk, at + c);
        Put(dvs[c], dv, at + c);
      }
    };
    for (size_t s = 0; s <= first; ++s) key(s, std::integral_constant<size_t, 0>());
    if constexpr (kQ == 2) key(first + 1, std::integral_constant<size_t, 1>());
#pragma GCC unroll 2
    for (size_t u = 0; u < kQ; ++u) {
      for (size_t c = 0; c < D; ++c) {
        Put(hn::Mul(sum[u][c], Set(head.scale)), dq, (first + u) * head.row + c);
      }
    }
  });
}

// ---- Sums over lanes.

#if HWY_TARGET != HWY_SCALAR
// The sum of the 128-bit blocks of v.
template <class V>
HWY_INLINE auto SumOfBlocks(V v) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<decltype(d)> half;
    return SumOfBlocks(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

#endif

// out[i] = (or, with accumulate, +=) the sum of the lanes of x[i]; n is a multiple of 4.
HWY_INLINE void SumLanes(const float* x, size_t n, bool accumulate, float* out) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < n; ++i) out[i] = x[i] + (accumulate ? out[i] : 0);
#else
  const FloatTag d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<FloatTag> > pairs;
  const hn::CappedTag<float, 4> four;
  for (size_t i = 0; i < n; i += 4) {
    const auto sum_pairs = [&](size_t at) HWY_ATTR {
      const FloatVec a = At(x, at), b = At(x, at + 1);
      return hn::BitCast(pairs,
                         hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    };
    const auto low = sum_pairs(i), high = sum_pairs(i + 2);
    auto sums = SumOfBlocks(hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                                    hn::BitCast(d, hn::InterleaveUpper(pairs, low, high))));
    if (accumulate) sums = hn::Add(sums, hn::LoadU(four, out + i));
    hn::StoreU(sums, four, out + i);
  }
#endif
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_NARROW_INL_H_
