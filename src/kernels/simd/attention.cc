#include "kernels/simd/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/buffer.h"
#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef HEED_KERNELS_SIMD_ATTENTION_CC_
#define HEED_KERNELS_SIMD_ATTENTION_CC_

namespace heed::simd {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Keys in a tile. Tiles start at multiples of it, whatever is computed.
constexpr int64_t kTile = 64;
// Rows of a block, the unit that shares loads of a tile.
constexpr int64_t kBlock = 6;
// Rows of a forward piece; what packing a key tile is spread over.
constexpr int64_t kForwardRows = 192;
// Rows whose weights backward holds at a time.
constexpr int64_t kBackwardRows = 96;
// Head widths up to this are computed with queries, not keys, in the lanes of a vector.
constexpr int64_t kSmallWidth = 4;
// Multiplications below which a piece is not worth handing to another thread.
constexpr int64_t kPieceWork = 1 << 17;

// The calling thread's memory, cut into arrays aligned to 64 bytes; valid until the next Scratch.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    thread_local Buffer buffer;
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float) + kArrays * 64;
    if (buffer.size() < bytes) buffer = Buffer(bytes);
    next_ = buffer.floats();
  }
  float* Take(int64_t floats) {
    float* taken = next_;
    next_ += (floats + 15) / 16 * 16;
    return taken;
  }

 private:
  static constexpr size_t kArrays = 16;  // at most so many Takes, each rounded up to 64 bytes
  float* next_;
};

// The rows of one key/value head: row r is query t0 + r / heads of head h0 + r % heads.
struct Rows {
  int64_t b, h0, heads, t0, count;
  int64_t t(int64_t r) const { return t0 + r / heads; }
  int64_t h(int64_t r) const { return h0 + r % heads; }
};

// Query t sees the keys First(t) <= s < Last(t); both can be below 0.
struct Sight {
  int64_t shift, window;
  Sight(const AttentionArgs<>& a, int64_t b)
      : shift((a.lengths ? a.lengths[b] : a.S) - a.T_ + 1), window(a.window) {}
  int64_t Last(int64_t t) const { return t + shift; }
  int64_t First(int64_t t) const { return window > 0 ? t + shift - window : 0; }
};

inline const float* QueryRow(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return a.q + rows.b * a.q_batch + rows.t(r) * a.q_row + rows.h(r) * a.D;
}

// Offset of rows' key/value head at key 0.
inline int64_t KeyOffset(const AttentionArgs<>& a, const Rows& rows) {
  return rows.b * a.kv_batch + rows.h0 / (a.H / a.Hkv) * a.kv_head;
}

// Row r's place in z and dz.
inline int64_t OutputOffset(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return ((rows.b * a.T_ + rows.t(r)) * a.H + rows.h(r)) * a.D;
}

// Row r's place in lse.
inline int64_t RowIndex(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return (rows.b * a.H + rows.h(r)) * a.T_ + rows.t(r);
}

// What dropout multiplies the weight of each key with.
class DropoutRow {
 public:
  DropoutRow(const AttentionArgs<>& a, const Rows& rows, int64_t r)
      : key_(a.dropout.key),
        // u >= p for the 24-bit u = bits / 2^24, without rounding p.
        least_(static_cast<uint32_t>(std::ceil(a.dropout.p * 0x1p24))),
        kept_(static_cast<float>(1 / (1 - a.dropout.p))),
        first_(static_cast<uint64_t>(RowIndex(a, rows, r) * a.S)) {}
  float operator()(int64_t s) const {
    return RandomBits(key_, first_ + static_cast<uint64_t>(s)) >> 8 >= least_ ? kept_ : 0.0f;
  }

 private:
  RandomKey key_;
  uint32_t least_;
  float kept_;
  uint64_t first_;
};

// Runs items in pieces of at least kPieceWork multiplications.
template <class Body>
void ForItems(int64_t items, int64_t work_per_item, const Body& body) {
  const int64_t per_piece =
      std::clamp<int64_t>(kPieceWork / std::max<int64_t>(1, work_per_item), 1, items);
  ParallelFor((items + per_piece - 1) / per_piece, [&](int64_t piece) {
    const int64_t end = std::min(items, (piece + 1) * per_piece);
    for (int64_t item = piece * per_piece; item < end; ++item) body(item);
  });
}

}  // namespace
}  // namespace heed::simd

#endif  // HEED_KERNELS_SIMD_ATTENTION_CC_

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

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

HWY_INLINE float ReduceSum(Vec v) { return hn::GetLane(hn::SumOfLanes(Tag(), v)); }
HWY_INLINE float ReduceMax(Vec v) { return hn::GetLane(hn::MaxOfLanes(Tag(), v)); }

// ---- Register tiles

// C(r, :) = start + sum over k0 <= k < k1 of A(r, k) B(k, :), in order of k. Every row is a chain of
// multiply-adds of its own, so its bits do not depend on the number of rows or columns.
struct Product {
  const float* a = nullptr;  // A(r, k) = a[r·a_row + k·a_k]
  int64_t a_row = 0, a_k = 1;
  const float* b = nullptr;  // B(k, :) = b + k·b_row, whole vectors
  int64_t b_row = 0;
  float* c = nullptr;  // C(r, :) = c + r·c_row
  int64_t c_row = 0;
  int64_t k0 = 0, k1 = 0;
  // With Start::kScale, C(r, :) is multiplied by factor[r] first, and the sum of row r goes on to
  // last[r] >= k1.
  const float* factor = nullptr;
  const int64_t* last = nullptr;
};

enum class Start { kZero, kAdd, kScale };

template <Start kStart, int kRows, int kCols>
HWY_NOINLINE void Tile(const Product& p) {
  const Tag d;
  Vec sum[kRows][kCols];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) {
      const float* start = p.c + r * p.c_row + c * kLanes;
      if constexpr (kStart == Start::kZero) sum[r][c] = hn::Zero(d);
      if constexpr (kStart == Start::kAdd) sum[r][c] = hn::LoadU(d, start);
      if constexpr (kStart == Start::kScale) {
        sum[r][c] = hn::Mul(hn::LoadU(d, start), hn::Set(d, p.factor[r]));
      }
    }
  }
  const float* a = p.a + p.k0 * p.a_k;
  const float* b = p.b + p.k0 * p.b_row;
  const int64_t a_row = p.a_row, a_k = p.a_k, b_row = p.b_row;
  int64_t k = p.k0;
  for (; k < p.k1; ++k) {
    Vec row[kCols];
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) row[c] = hn::LoadU(d, b + c * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(d, a[r * a_row]);
      HWY_UNROLL(8)
      for (int c = 0; c < kCols; ++c) sum[r][c] = hn::MulAdd(x, row[c], sum[r][c]);
    }
    a += a_k;
    b += b_row;
  }
  if constexpr (kStart == Start::kScale) {
    for (; k < p.last[kRows - 1]; ++k) {
      Vec row[kCols];
      HWY_UNROLL(8)
      for (int c = 0; c < kCols; ++c) row[c] = hn::LoadU(d, b + c * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        if (k >= p.last[r]) continue;
        const Vec x = hn::Set(d, a[r * a_row]);
        HWY_UNROLL(8)
        for (int c = 0; c < kCols; ++c) sum[r][c] = hn::MulAdd(x, row[c], sum[r][c]);
      }
      a += a_k;
      b += b_row;
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) hn::StoreU(sum[r][c], d, p.c + r * p.c_row + c * kLanes);
  }
}

template <Start kStart, int kRows>
void RowsOf(const Product& p, int64_t cols) {
  static_assert(kVecs == 2 || kVecs == 4);
  if (cols == 1) return Tile<kStart, kRows, 1>(p);
  if (cols == 2) return Tile<kStart, kRows, 2>(p);
  if constexpr (kVecs == 4) {
    if (cols == 3) return Tile<kStart, kRows, 3>(p);
    return Tile<kStart, kRows, 4>(p);
  }
}

// A product of 1 to kBlock rows and any number of vectors of columns.
template <Start kStart>
void BlockProduct(Product p, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kVecs) {
    const int64_t n = std::min<int64_t>(kVecs, cols - c);
    switch (rows) {
      case 1: RowsOf<kStart, 1>(p, n); break;
      case 2: RowsOf<kStart, 2>(p, n); break;
      case 3: RowsOf<kStart, 3>(p, n); break;
      case 4: RowsOf<kStart, 4>(p, n); break;
      case 5: RowsOf<kStart, 5>(p, n); break;
      default: RowsOf<kStart, 6>(p, n);
    }
    p.b += kVecs * kLanes;
    p.c += kVecs * kLanes;
  }
}

// ---- Packing

// out [n, padded] = factor · in, rows `stride` apart, zeros from D on.
void PackRow(const float* in, int64_t D, float factor, float* out) {
  const Tag d;
  int64_t i = 0;
  for (; i + kLanes <= D; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, in + i), hn::Set(d, factor)), d, out + i);
  }
  if (i == D) return;
  hn::StoreU(hn::Zero(d), d, out + i);
  for (; i < D; ++i) out[i] = in[i] * factor;
}

// out [D, kTile] = in^T for n keys `stride` apart. Columns beyond n, up to a whole vector, repeat
// the last key: they are hidden later.
void PackTransposed(const float* in, int64_t stride, int64_t n, int64_t D, float* out) {
  const int64_t columns = RoundUp(n);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // Four channels of kLanes keys: lane group g of part[r] holds key 4g + r, and a transposition
  // inside the groups brings the keys in order.
  const Tag d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<Tag>> d64;
  const Vec lane = hn::Iota(d, 0);
  for (int64_t j = 0; j < columns; j += kLanes) {
    const float* key[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) key[l] = in + std::min(j + l, n - 1) * stride;
    for (i = 0; i + 4 <= D; i += 4) {
      Vec part[4];
      HWY_UNROLL(4)
      for (int r = 0; r < 4; ++r) {
        part[r] = hn::LoadDup128(d, key[r] + i);
        HWY_UNROLL(4)
        for (int g = 1; g < kLanes / 4; ++g) {
          part[r] = hn::IfThenElse(hn::Ge(lane, hn::Set(d, 4.0f * g)),
                                   hn::LoadDup128(d, key[4 * g + r] + i), part[r]);
        }
      }
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, part[0], part[1]));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, part[2], part[3]));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, part[0], part[1]));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, part[2], part[3]));
      float* to = out + i * kTile + j;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + kTile);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 2 * kTile);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 3 * kTile);
    }
  }
#endif
  for (; i < D; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * kTile + j] = in[std::min(j, n - 1) * stride + i];
  }
}

// ---- Forward

// The part of a key tile that each row of a block sees: keys first[r] <= j < last[r] of the tile.
struct BlockSight {
  int64_t rows;
  int64_t first[kBlock], last[kBlock];

  BlockSight(const Sight& sight, const Rows& all, int64_t r0, int64_t key0)
      : rows(std::min(kBlock, all.count - r0)) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = all.t(r0 + r);
      first[r] = std::clamp<int64_t>(sight.First(t) - key0, 0, kTile);
      last[r] = std::clamp<int64_t>(sight.Last(t) - key0, 0, kTile);
    }
  }
  bool Empty() const { return last[rows - 1] == 0 || first[0] == kTile; }
  // Vectors of scores that hold a key somebody sees.
  int64_t vectors() const { return (last[rows - 1] + kLanes - 1) / kLanes; }
  bool Whole(int64_t r) const { return first[r] == 0 && last[r] >= vectors() * kLanes; }
};

// Score vector at key j of a row, -inf where hidden.
HWY_INLINE Vec Visible(const BlockSight& sight, int64_t r, int64_t j, Vec score) {
  const Tag d;
  const Vec key = hn::Iota(d, static_cast<float>(j));
  const auto visible = hn::And(hn::Ge(key, hn::Set(d, static_cast<float>(sight.first[r]))),
                               hn::Lt(key, hn::Set(d, static_cast<float>(sight.last[r]))));
  return hn::IfThenElse(visible, score, hn::Set(d, kHidden));
}

// One step of the online softmax for a block: scores [rows, kTile] become weights relative to the
// running maximum max [rows]; sum [rows, kLanes] holds the denominators by lane; factor [rows] is
// what earlier sums must be multiplied with.
HWY_NOINLINE void SoftmaxStep(const BlockSight& sight, float* scores, float* max, float* sum,
                              float* factor) {
  const Tag d;
  const int64_t columns = sight.vectors() * kLanes;
  alignas(64) float change[kBlock + kLanes] = {}, base[kBlock];
  for (int64_t r = 0; r < sight.rows; ++r) {
    float* row = scores + r * kTile;
    Vec largest = hn::Set(d, kHidden);
    if (sight.Whole(r)) {
      for (int64_t j = 0; j < columns; j += kLanes) {
        largest = hn::Max(largest, hn::Load(d, row + j));
      }
    } else {
      for (int64_t j = 0; j < columns; j += kLanes) {
        const Vec score = Visible(sight, r, j, hn::Load(d, row + j));
        largest = hn::Max(largest, score);
        hn::Store(score, d, row + j);
      }
    }
    const float old = max[r];
    max[r] = std::max(old, ReduceMax(largest));
    // Nothing seen yet: any finite base makes weights e^-inf = 0.
    base[r] = max[r] == kHidden ? 0.0f : max[r];
    change[r] = old - base[r];
  }
  for (int64_t r = 0; r < sight.rows; r += kLanes) {
    hn::Store(Exp(hn::Load(d, change + r)), d, change + r);
  }
  for (int64_t r = 0; r < sight.rows; ++r) {
    float* row = scores + r * kTile;
    const Vec relative = hn::Set(d, base[r]);
    factor[r] = change[r];
    Vec total = hn::Mul(hn::Load(d, sum + r * kLanes), hn::Set(d, factor[r]));
    for (int64_t j = 0; j < columns; j += kLanes) {
      const Vec weight = Exp(hn::Sub(hn::Load(d, row + j), relative));
      total = hn::Add(total, weight);
      hn::Store(weight, d, row + j);
    }
    hn::Store(total, d, sum + r * kLanes);
  }
}

void DropWeights(const AttentionArgs<>& a, const Rows& rows, int64_t r0, int64_t key0,
                 const BlockSight& sight, float* weights) {
  for (int64_t r = 0; r < sight.rows; ++r) {
    const DropoutRow factor(a, rows, r0 + r);
    for (int64_t j = sight.first[r]; j < sight.last[r]; ++j) {
      weights[r * kTile + j] *= factor(key0 + j);
    }
  }
}

// z [rows, padded] = factor · z + weights [rows, kTile] · v, over the keys each row sees.
void AddValues(const BlockSight& sight, const float* weights, const float* factor, const float* v,
               int64_t v_row, float* z, int64_t padded) {
  Product p;
  p.b = v, p.b_row = v_row;
  p.c_row = padded;
  if (sight.first[sight.rows - 1] == 0) {
    p.a = weights, p.a_row = kTile;
    p.c = z;
    p.k1 = sight.last[0];
    p.factor = factor;
    p.last = sight.last;
    BlockProduct<Start::kScale>(p, sight.rows, padded / kLanes);
    return;
  }
  for (int64_t r = 0; r < sight.rows; ++r) {
    p.a = weights + r * kTile;
    p.c = z + r * padded;
    p.k0 = sight.first[r], p.k1 = std::max(sight.first[r], sight.last[r]);
    p.factor = factor + r;
    p.last = &p.k1;
    BlockProduct<Start::kScale>(p, 1, padded / kLanes);
  }
}

void StoreOutput(const AttentionArgs<>& a, const Rows& rows, int64_t r, float max, float total,
                 const float* z) {
  const Tag d;
  const bool blind = total == 0;
  if (a.lse) a.lse[RowIndex(a, rows, r)] = blind ? kHidden : max + std::log(total);
  const float share = blind ? 0.0f : 1 / total;
  float* out = a.z + OutputOffset(a, rows, r);
  int64_t i = 0;
  for (; i + kLanes <= a.D; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Load(d, z + i), hn::Set(d, share)), d, out + i);
  }
  for (; i < a.D; ++i) out[i] = z[i] * share;
}

void ForwardRows(const AttentionArgs<>& a, const Rows& rows) {
  const Tag d;
  const int64_t D = a.D, padded = RoundUp(D), count = rows.count;
  Scratch scratch(count * (D + padded + kLanes + 1) + (kBlock + D + padded) * kTile);
  float* q = scratch.Take(count * D + kLanes);
  float* z = scratch.Take(count * padded);
  float* sum = scratch.Take(count * kLanes);
  float* max = scratch.Take(count);
  float* scores = scratch.Take(kBlock * kTile);
  float* keys = scratch.Take(D * kTile);
  float* packed_values = scratch.Take(kTile * padded);
  float factor[kBlock];

  for (int64_t r = 0; r < count; ++r) {
    PackRow(QueryRow(a, rows, r), D, a.scale, q + r * D);
    max[r] = kHidden;
  }
  std::fill(z, z + count * padded, 0.0f);
  std::fill(sum, sum + count * kLanes, 0.0f);

  const Sight sight(a, rows.b);
  const int64_t first = std::max<int64_t>(0, sight.First(rows.t0));
  const int64_t last = sight.Last(rows.t(count - 1));
  const bool pack_values = D % kLanes != 0 || count > kBlock;
  for (int64_t key0 = first / kTile * kTile; key0 < last; key0 += kTile) {
    const int64_t n = std::min(kTile, last - key0);
    const int64_t offset = KeyOffset(a, rows) + key0 * a.kv_row;
    PackTransposed(a.k + offset, a.kv_row, n, D, keys);
    const float* values = a.v + offset;
    int64_t values_row = a.kv_row;
    if (pack_values) {
      for (int64_t j = 0; j < n; ++j) {
        PackRow(values + j * a.kv_row, D, 1.0f, packed_values + j * padded);
      }
      values = packed_values;
      values_row = padded;
    }
    for (int64_t r0 = 0; r0 < count; r0 += kBlock) {
      const BlockSight block(sight, rows, r0, key0);
      if (block.Empty()) continue;
      Product p;
      p.a = q + r0 * D, p.a_row = D;
      p.b = keys, p.b_row = kTile;
      p.c = scores, p.c_row = kTile;
      p.k1 = D;
      BlockProduct<Start::kZero>(p, block.rows, block.vectors());
      SoftmaxStep(block, scores, max + r0, sum + r0 * kLanes, factor);
      if (a.dropout.p > 0) DropWeights(a, rows, r0, key0, block, scores);
      AddValues(block, scores, factor, values, values_row, z + r0 * padded, padded);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    StoreOutput(a, rows, r, max[r], ReduceSum(hn::Load(d, sum + r * kLanes)), z + r * padded);
  }
}

void Forward(const AttentionArgs<>& a) {
  if (a.B * a.T_ * a.H * a.D == 0) return;
  const int64_t group = a.H / a.Hkv;
  const auto tiles = [&](int64_t heads) {
    return (a.T_ * heads + kForwardRows - 1) / kForwardRows;
  };
  // A group's heads share packed keys, unless that leaves too little to share out.
  const int64_t heads = a.B * a.Hkv * tiles(group) >= 4 ? group : 1;
  const int64_t queries = (a.T_ + tiles(heads) - 1) / tiles(heads);
  const int64_t per_head = (a.T_ + queries - 1) / queries, bundles = a.H / heads;
  ForItems(a.B * bundles * per_head, queries * heads * a.S * a.D, [&](int64_t item) {
    const int64_t t0 = item % per_head * queries, bundle = item / per_head;
    ForwardRows(a, {bundle / bundles, bundle % bundles * heads, heads, t0,
                    std::min(queries, a.T_ - t0) * heads});
  });
}

void Backward(const AttentionArgs<>&) {}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void AttentionForward(const AttentionArgs<>& a) { HWY_DYNAMIC_DISPATCH(Forward)(a); }
void AttentionBackward(const AttentionArgs<>& a) { HWY_DYNAMIC_DISPATCH(Backward)(a); }

}  // namespace heed::simd
#endif
