// Attention of heads too narrow to fill a vector: queries, keys or whole heads in its lanes.
// Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_ATTENTION_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_ATTENTION_LANES_INL_H_
#undef HEED_KERNELS_SIMD_ATTENTION_LANES_INL_H_
#else
#define HEED_KERNELS_SIMD_ATTENTION_LANES_INL_H_
#endif

#include <cstring>

#include "kernels/simd/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

// ---- Small heads: queries in the lanes of a vector

// Queries r0 .. r0 + kLanes - 1 of some rows and the keys each of them sees; lanes without a row
// see none.
struct LaneSight {
  int64_t rows, begin, end;  // begin <= s < end holds every key that some lane sees
  // A lane sees before < s < last.
  alignas(64) int32_t before[kLanes] = {}, last[kLanes] = {};

  LaneSight(const Sight& sight, const Rows& all, int64_t r0)
      : rows(std::min(kLanes, all.count - r0)),
        begin(std::max<int64_t>(0, sight.First(all.t(r0)))),
        end(sight.Last(all.t(r0 + rows - 1))) {
    for (int64_t r = 0; r < rows; ++r) {
      before[r] = static_cast<int32_t>(sight.First(all.t(r0 + r)) - 1);
      last[r] = static_cast<int32_t>(sight.Last(all.t(r0 + r)));
    }
  }
  HWY_INLINE auto Sees(int64_t s) const {
    const hn::RebindToSigned<Tag> d;
    const auto key = hn::Set(d, static_cast<int32_t>(s));
    return hn::RebindMask(
        Tag(), hn::And(hn::Gt(key, hn::Load(d, before)), hn::Lt(key, hn::Load(d, last))));
  }
};

// Dropout factors [n, kLanes] of keys s0 .. s0 + n - 1, n <= kTile, in every lane.
void LaneFactors(const AttentionArgs<>& a, const Rows& rows, int64_t r0, int64_t lanes, int64_t s0,
                 int64_t n, float* factors) {
  alignas(64) float row[kTile];
  for (int64_t r = 0; r < lanes; ++r) {
    DropoutFactors(a.dropout, RowIndex(a, rows, r0 + r) * a.S + s0, n, row);
    for (int64_t j = 0; j < n; ++j) factors[j * kLanes + r] = row[j];
  }
}

// Dots start from 0: with one channel a bare product would be left for the compiler to fuse with
// the subtraction behind it, here but not there.

// x · y[0 .. kD - 1], the second broadcast.
template <int kD>
HWY_INLINE Vec Dot(const Vec* x, const float* y) {
  const Tag d;
  Vec dot = hn::MulAdd(x[0], hn::Set(d, y[0]), hn::Zero(d));
  for (int i = 1; i < kD; ++i) dot = hn::MulAdd(x[i], hn::Set(d, y[i]), dot);
  return dot;
}

// out[i] lane l = factor · row(l)[i] for the lanes below `lanes`, 0 in the others.
template <int kD, class Row>
HWY_INLINE void Gather(int64_t lanes, float factor, const Row& row, Vec* out) {
  alignas(64) float channels[kD][kLanes] = {};
  for (int64_t l = 0; l < lanes; ++l) {
    for (int i = 0; i < kD; ++i) channels[i][l] = factor * row(l)[i];
  }
  for (int i = 0; i < kD; ++i) out[i] = hn::Load(Tag(), channels[i]);
}

// row(l)[i] = x[i] lane l.
template <int kD, class Row>
HWY_INLINE void Scatter(const Vec* x, int64_t lanes, const Row& row) {
  alignas(64) float channels[kD][kLanes];
  for (int i = 0; i < kD; ++i) hn::Store(x[i], Tag(), channels[i]);
  for (int64_t l = 0; l < lanes; ++l) {
    for (int i = 0; i < kD; ++i) row(l)[i] = channels[i][l];
  }
}

template <int kD>
void ForwardLanes(const AttentionArgs<>& a, const Rows& rows) {
  const Tag d;
  const Sight sight(a, rows.b);
  alignas(64) float scores[kTile * kLanes], factors[kTile * kLanes] = {};
  for (int64_t r0 = 0; r0 < rows.count; r0 += kLanes) {
    const LaneSight lanes(sight, rows, r0);
    Vec q[kD], z[kD], max = hn::Set(d, kHidden), sum = hn::Zero(d);
    Gather<kD>(
        lanes.rows, a.scale, [&](int64_t l) { return QueryRow(a, rows, r0 + l); }, q);
    for (int i = 0; i < kD; ++i) z[i] = hn::Zero(d);
    for (int64_t key0 = lanes.begin / kTile * kTile; key0 < lanes.end; key0 += kTile) {
      const int64_t n = std::min(kTile, lanes.end - key0);
      const int64_t offset = KeyOffset(a, rows) + key0 * a.kv_row;
      Vec largest = max;
      for (int64_t j = 0; j < n; ++j) {
        const Vec score = hn::IfThenElse(
            lanes.Sees(key0 + j), Dot<kD>(q, a.k + offset + j * a.kv_row), hn::Set(d, kHidden));
        largest = hn::Max(largest, score);
        hn::Store(score, d, scores + j * kLanes);
      }
      const Vec base = hn::IfThenZeroElse(hn::Eq(largest, hn::Set(d, kHidden)), largest);
      const Vec factor = Exp(hn::Sub(max, base));
      max = largest;
      sum = hn::Mul(sum, factor);
      for (int i = 0; i < kD; ++i) z[i] = hn::Mul(z[i], factor);
      const bool drop = a.dropout.p > 0;
      if (drop) LaneFactors(a, rows, r0, lanes.rows, key0, n, factors);
      for (int64_t j = 0; j < n; ++j) {
        const Vec score = hn::Load(d, scores + j * kLanes);
        Vec weight = Exp(hn::Sub(score, base));
        sum = hn::Add(sum, weight);
        if (drop) weight = hn::Mul(weight, hn::Load(d, factors + j * kLanes));
        const auto sees = hn::Ne(score, hn::Set(d, kHidden));
        const float* v = a.v + offset + j * a.kv_row;
        for (int i = 0; i < kD; ++i) {
          z[i] = hn::IfThenElse(sees, hn::MulAdd(weight, hn::Set(d, v[i]), z[i]), z[i]);
        }
      }
    }
    StoreLse(a, rows, r0, max, sum);
    const Vec share = Shares(sum);
    for (int i = 0; i < kD; ++i) z[i] = hn::Mul(z[i], share);
    Scatter<kD>(z, lanes.rows, [&](int64_t l) { return a.z + OutputOffset(a, rows, r0 + l); });
  }
}

// ---- Small heads of short sequences: heads in the lanes, so that no hidden score is computed. The
// numbers of each head meet the same operations in the same order as with queries in the lanes.

// The key/value heads first .. first + count - 1 of all sequences, counted sequence by sequence:
// where each lane's numbers lie at position 0 of its first query head. Lanes without a head repeat
// the last.
struct LaneHeads {
  int64_t count;
  int64_t q[kLanes], kv[kLanes], z[kLanes], row[kLanes];

  LaneHeads(const AttentionArgs<>& a, int64_t first)
      : count(std::min(kLanes, a.B * a.Hkv - first)) {
    const int64_t group = a.H / a.Hkv;
    for (int64_t l = 0; l < kLanes; ++l) {
      const int64_t head = first + std::min(l, count - 1), b = head / a.Hkv, h = head % a.Hkv;
      q[l] = b * a.q_batch + h * group * a.D;
      kv[l] = b * a.kv_batch + h * a.kv_head;
      z[l] = (b * a.T_ * a.H + h * group) * a.D;
      row[l] = (b * a.H + h * group) * a.T_;
    }
  }
};

// out[i] lane l = x[offsets[l] + i].
template <int kD>
HWY_INLINE void ReadLanes(const float* x, const int64_t* offsets, Vec* out) {
  const Tag d;
  alignas(64) float rows[kLanes * kD];
  for (int64_t l = 0; l < kLanes; ++l) std::memcpy(rows + l * kD, x + offsets[l], kD * sizeof(*x));
  if constexpr (kD == 1) out[0] = hn::Load(d, rows);
  if constexpr (kD == 2) hn::LoadInterleaved2(d, rows, out[0], out[1]);
  if constexpr (kD == 3) hn::LoadInterleaved3(d, rows, out[0], out[1], out[2]);
  if constexpr (kD == 4) hn::LoadInterleaved4(d, rows, out[0], out[1], out[2], out[3]);
}

// x[offsets[l] + i] = in[i] lane l for the first `count` lanes.
template <int kD>
HWY_INLINE void WriteLanes(const Vec* in, const int64_t* offsets, int64_t count, float* x) {
  const Tag d;
  alignas(64) float rows[kLanes * kD];
  if constexpr (kD == 1) hn::Store(in[0], d, rows);
  if constexpr (kD == 2) hn::StoreInterleaved2(in[0], in[1], d, rows);
  if constexpr (kD == 3) hn::StoreInterleaved3(in[0], in[1], in[2], d, rows);
  if constexpr (kD == 4) hn::StoreInterleaved4(in[0], in[1], in[2], in[3], d, rows);
  for (int64_t l = 0; l < count; ++l) std::memcpy(x + offsets[l], rows + l * kD, kD * sizeof(*x));
}

// out [S, kD, kLanes] from the keys or values x.
template <int kD>
void PackLanes(const AttentionArgs<>& a, const LaneHeads& heads, const float* x, float* out) {
  for (int64_t s = 0; s < a.S; ++s) {
    Vec row[kD];
    ReadLanes<kD>(x + s * a.kv_row, heads.kv, row);
    for (int i = 0; i < kD; ++i) hn::Store(row[i], Tag(), out + (s * kD + i) * kLanes);
  }
}

// Dropout factors [S, kLanes] of query t of query head g of each lane's group.
void HeadFactors(const AttentionArgs<>& a, const LaneHeads& heads, int64_t g, int64_t t,
                 float* factors) {
  alignas(64) float row[kTile];
  for (int64_t l = 0; l < heads.count; ++l) {
    DropoutFactors(a.dropout, (heads.row[l] + g * a.T_ + t) * a.S, a.S, row);
    for (int64_t s = 0; s < a.S; ++s) factors[s * kLanes + l] = row[s];
  }
}

// x · y[0 .. kD - 1], lane by lane.
template <int kD>
HWY_INLINE Vec LaneDot(const Vec* x, const float* y) {
  const Tag d;
  Vec dot = hn::MulAdd(x[0], hn::Load(d, y), hn::Zero(d));
  for (int i = 1; i < kD; ++i) dot = hn::MulAdd(x[i], hn::Load(d, y + i * kLanes), dot);
  return dot;
}

template <int kD>
void ForwardHeads(const AttentionArgs<>& a, int64_t first_head) {
  const Tag d;
  const LaneHeads heads(a, first_head);
  const Sight sight(a, 0);
  alignas(64) float keys[kTile * kD * kLanes], values[kTile * kD * kLanes];
  alignas(64) float scores[kTile * kLanes], factors[kTile * kLanes] = {}, lse[kLanes];
  PackLanes<kD>(a, heads, a.k, keys);
  PackLanes<kD>(a, heads, a.v, values);
  for (int64_t t = 0; t < a.T_; ++t) {
    const int64_t first = std::max<int64_t>(0, sight.First(t)), last = sight.Last(t);
    for (int64_t g = 0; g < a.H / a.Hkv; ++g) {
      Vec q[kD], z[kD], max = hn::Set(d, kHidden), sum = hn::Zero(d);
      ReadLanes<kD>(a.q + t * a.q_row + g * kD, heads.q, q);
      for (int i = 0; i < kD; ++i) {
        q[i] = hn::Mul(hn::Set(d, a.scale), q[i]);
        z[i] = hn::Zero(d);
      }
      for (int64_t s = first; s < last; ++s) {
        const Vec score = LaneDot<kD>(q, keys + s * kD * kLanes);
        max = hn::Max(max, score);
        hn::Store(score, d, scores + s * kLanes);
      }
      const Vec base = hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, kHidden)), max);
      const bool drop = a.dropout.p > 0;
      if (drop) HeadFactors(a, heads, g, t, factors);
      for (int64_t s = first; s < last; ++s) {
        Vec weight = Exp(hn::Sub(hn::Load(d, scores + s * kLanes), base));
        sum = hn::Add(sum, weight);
        if (drop) weight = hn::Mul(weight, hn::Load(d, factors + s * kLanes));
        for (int i = 0; i < kD; ++i) {
          z[i] = hn::MulAdd(weight, hn::Load(d, values + (s * kD + i) * kLanes), z[i]);
        }
      }
      const Vec share = Shares(sum);
      for (int i = 0; i < kD; ++i) z[i] = hn::Mul(z[i], share);
      WriteLanes<kD>(z, heads.z, heads.count, a.z + (t * a.H + g) * kD);
      if (a.lse == nullptr) continue;
      hn::Store(Lse(max, sum), d, lse);
      for (int64_t l = 0; l < heads.count; ++l) a.lse[heads.row[l] + g * a.T_ + t] = lse[l];
    }
  }
}

// Whether heads rather than queries fill the lanes: short sequences, and enough of them.
bool HeadsFillLanes(const AttentionArgs<>& a) {
  return a.S <= kTile && a.lengths == nullptr && a.B * a.Hkv >= kLanes;
}

// run(a, first) for the first head of each kLanes of them.
template <class Run>
void ForLaneHeads(const AttentionArgs<>& a, const Run& run) {
  ForItems((a.B * a.Hkv + kLanes - 1) / kLanes, kLanes * a.T_ * a.H / a.Hkv * a.S * a.D,
           [&](int64_t item) { run(a, item * kLanes); });
}

using HeadsFunction = void (*)(const AttentionArgs<>&, int64_t);
constexpr HeadsFunction kForwardHeads[kSmallWidth] = {ForwardHeads<1>, ForwardHeads<2>,
                                                      ForwardHeads<3>, ForwardHeads<4>};

using RowsFunction = void (*)(const AttentionArgs<>&, const Rows&);
constexpr RowsFunction kForwardLanes[kSmallWidth] = {ForwardLanes<1>, ForwardLanes<2>,
                                                     ForwardLanes<3>, ForwardLanes<4>};

// ---- Backward

// delta of LoadRowSums for a row in each lane.
template <int kD>
HWY_INLINE Vec RowDelta(const Vec* z, const Vec* dz) {
  Vec delta = hn::MulAdd(z[0], dz[0], hn::Zero(Tag()));
  for (int i = 1; i < kD; ++i) delta = hn::MulAdd(z[i], dz[i], delta);
  return delta;
}

// One key/value head of small width: dq with queries in the lanes, then dk and dv with keys there.
template <int kD>
void BackwardLanes(const AttentionArgs<>& a, const Rows& rows) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const int64_t count = rows.count;
  Scratch scratch(count * (2 + kD) + 2 * kLanes);
  float* delta = scratch.Take(count + kLanes);
  float* lse = scratch.Take(count + kLanes);
  float* scaled = scratch.Take(count * kD);
  for (int64_t r = 0; r < count; ++r) {
    lse[r] = a.lse[RowIndex(a, rows, r)];
    for (int i = 0; i < kD; ++i) scaled[r * kD + i] = a.scale * QueryRow(a, rows, r)[i];
  }

  const Sight sight(a, rows.b);
  alignas(64) float factors[kTile * kLanes] = {};
  const float* k = a.k + KeyOffset(a, rows);
  const float* v = a.v + KeyOffset(a, rows);
  for (int64_t r0 = 0; r0 < count; r0 += kLanes) {
    const LaneSight lanes(sight, rows, r0);
    Vec q[kD], z[kD], dz[kD], dq[kD];
    Gather<kD>(
        lanes.rows, 1, [&](int64_t l) { return scaled + (r0 + l) * kD; }, q);
    Gather<kD>(
        lanes.rows, 1, [&](int64_t l) { return a.z + OutputOffset(a, rows, r0 + l); }, z);
    Gather<kD>(
        lanes.rows, 1, [&](int64_t l) { return a.dz + OutputOffset(a, rows, r0 + l); }, dz);
    const Vec mean = RowDelta<kD>(z, dz);
    hn::Store(mean, d, delta + r0);
    for (int i = 0; i < kD; ++i) dq[i] = hn::Zero(d);
    const Vec base = hn::LoadU(d, lse + r0);
    for (int64_t s = lanes.begin; s < lanes.end; ++s) {
      const int64_t j = (s - lanes.begin) % kTile;
      if (a.dropout.p > 0 && j == 0) {
        LaneFactors(a, rows, r0, lanes.rows, s, std::min(kTile, lanes.end - s), factors);
      }
      const float* key = k + s * a.kv_row;
      const Vec weight = hn::IfThenElseZero(lanes.Sees(s), Exp(hn::Sub(Dot<kD>(q, key), base)));
      Vec dweight = Dot<kD>(dz, v + s * a.kv_row);
      if (a.dropout.p > 0) dweight = hn::Mul(dweight, hn::Load(d, factors + j * kLanes));
      const Vec dscore = hn::Mul(weight, hn::Sub(dweight, mean));
      for (int i = 0; i < kD; ++i) dq[i] = hn::MulAdd(dscore, hn::Set(d, key[i]), dq[i]);
    }
    for (int i = 0; i < kD; ++i) dq[i] = hn::Mul(dq[i], hn::Set(d, a.scale));
    Scatter<kD>(dq, lanes.rows,
                [&](int64_t l) { return a.dq + (QueryRow(a, rows, r0 + l) - a.q); });
  }

  for (int64_t s0 = 0; s0 < a.S; s0 += kLanes) {
    const int64_t lanes = std::min(kLanes, a.S - s0);
    Vec keys[kD], values[kD], dk[kD], dv[kD];
    Gather<kD>(
        lanes, 1, [&](int64_t l) { return k + (s0 + l) * a.kv_row; }, keys);
    Gather<kD>(
        lanes, 1, [&](int64_t l) { return v + (s0 + l) * a.kv_row; }, values);
    for (int i = 0; i < kD; ++i) dk[i] = dv[i] = hn::Zero(d);
    const auto key = hn::Iota(di, static_cast<int32_t>(s0));
    const int64_t end = a.window > 0 ? std::min(a.T_, s0 + lanes - 1 + a.window) : a.T_;
    for (int64_t r = s0 * rows.heads; r < end * rows.heads; ++r) {
      const int64_t t = rows.t(r);
      const auto sees = hn::RebindMask(
          d, hn::And(hn::Gt(key, hn::Set(di, static_cast<int32_t>(sight.First(t) - 1))),
                     hn::Lt(key, hn::Set(di, static_cast<int32_t>(sight.Last(t))))));
      const float* dz = a.dz + OutputOffset(a, rows, r);
      const Vec weight = hn::IfThenElseZero(
          sees, Exp(hn::Sub(Dot<kD>(keys, scaled + r * kD), hn::Set(d, lse[r]))));
      Vec dweight = Dot<kD>(values, dz), kept = weight;
      if (a.dropout.p > 0) {
        DropoutFactors(a.dropout, RowIndex(a, rows, r) * a.S + s0, lanes, factors);
        const Vec factor = hn::Load(d, factors);
        dweight = hn::Mul(dweight, factor);
        kept = hn::Mul(kept, factor);
      }
      const Vec dscore = hn::Mul(weight, hn::Sub(dweight, hn::Set(d, delta[r])));
      for (int i = 0; i < kD; ++i) {
        dv[i] = hn::MulAdd(kept, hn::Set(d, dz[i]), dv[i]);
        dk[i] = hn::MulAdd(dscore, hn::Set(d, scaled[r * kD + i]), dk[i]);
      }
    }
    const int64_t offset = KeyOffset(a, rows);
    Scatter<kD>(dk, lanes, [&](int64_t l) { return a.dk + offset + (s0 + l) * a.kv_row; });
    Scatter<kD>(dv, lanes, [&](int64_t l) { return a.dv + offset + (s0 + l) * a.kv_row; });
  }
}

constexpr RowsFunction kBackwardLanes[kSmallWidth] = {BackwardLanes<1>, BackwardLanes<2>,
                                                      BackwardLanes<3>, BackwardLanes<4>};

// The same with heads in the lanes, in one visit of each weight.
template <int kD>
void BackwardHeads(const AttentionArgs<>& a, int64_t first_head) {
  const Tag d;
  const LaneHeads heads(a, first_head);
  const Sight sight(a, 0);
  const int64_t size = a.S * kD * kLanes;
  alignas(64) float factors[kTile * kLanes] = {}, lse[kLanes];
  Scratch scratch(4 * size);
  float* keys = scratch.Take(size);
  float* values = scratch.Take(size);
  float* dk = scratch.Take(2 * size);
  float* dv = dk + size;
  PackLanes<kD>(a, heads, a.k, keys);
  PackLanes<kD>(a, heads, a.v, values);
  std::fill(dk, dk + 2 * size, 0.0f);
  for (int64_t t = 0; t < a.T_; ++t) {
    const int64_t first = std::max<int64_t>(0, sight.First(t)), last = sight.Last(t);
    for (int64_t g = 0; g < a.H / a.Hkv; ++g) {
      Vec q[kD], z[kD], dz[kD], dq[kD];
      ReadLanes<kD>(a.q + t * a.q_row + g * kD, heads.q, q);
      ReadLanes<kD>(a.z + (t * a.H + g) * kD, heads.z, z);
      ReadLanes<kD>(a.dz + (t * a.H + g) * kD, heads.z, dz);
      for (int i = 0; i < kD; ++i) {
        q[i] = hn::Mul(hn::Set(d, a.scale), q[i]);
        dq[i] = hn::Zero(d);
      }
      for (int64_t l = 0; l < kLanes; ++l) lse[l] = a.lse[heads.row[l] + g * a.T_ + t];
      const Vec base = hn::Load(d, lse), mean = RowDelta<kD>(z, dz);
      const bool drop = a.dropout.p > 0;
      if (drop) HeadFactors(a, heads, g, t, factors);
      for (int64_t s = first; s < last; ++s) {
        const int64_t at = s * kD * kLanes;
        const Vec weight = Exp(hn::Sub(LaneDot<kD>(q, keys + at), base));
        Vec dweight = LaneDot<kD>(dz, values + at), kept = weight;
        if (drop) {
          const Vec factor = hn::Load(d, factors + s * kLanes);
          dweight = hn::Mul(dweight, factor);
          kept = hn::Mul(kept, factor);
        }
        const Vec dscore = hn::Mul(weight, hn::Sub(dweight, mean));
        for (int i = 0; i < kD; ++i) {
          const int64_t c = at + i * kLanes;
          dq[i] = hn::MulAdd(dscore, hn::Load(d, keys + c), dq[i]);
          hn::Store(hn::MulAdd(kept, dz[i], hn::Load(d, dv + c)), d, dv + c);
          hn::Store(hn::MulAdd(dscore, q[i], hn::Load(d, dk + c)), d, dk + c);
        }
      }
      for (int i = 0; i < kD; ++i) dq[i] = hn::Mul(dq[i], hn::Set(d, a.scale));
      WriteLanes<kD>(dq, heads.q, heads.count, a.dq + t * a.q_row + g * kD);
    }
  }
  for (int64_t s = 0; s < a.S; ++s) {
    Vec row_k[kD], row_v[kD];
    for (int i = 0; i < kD; ++i) {
      row_k[i] = hn::Load(d, dk + (s * kD + i) * kLanes);
      row_v[i] = hn::Load(d, dv + (s * kD + i) * kLanes);
    }
    WriteLanes<kD>(row_k, heads.kv, heads.count, a.dk + s * a.kv_row);
    WriteLanes<kD>(row_v, heads.kv, heads.count, a.dv + s * a.kv_row);
  }
}

constexpr HeadsFunction kBackwardHeads[kSmallWidth] = {BackwardHeads<1>, BackwardHeads<2>,
                                                       BackwardHeads<3>, BackwardHeads<4>};

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_ATTENTION_LANES_INL_H_
