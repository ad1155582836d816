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

#include "kernels/simd/bf16-inl.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/random-inl.h"

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
// Backward pieces wanted at least, when there are few key/value heads.
constexpr int64_t kLeastPieces = 8;
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
  static constexpr size_t kArrays = 20;  // at most so many Takes, each rounded up to 64 bytes
  float* next_;
};

// The rows of one key/value head: row r is query t0 + r / heads of head h0 + r % heads.
struct Rows {
  int64_t b, h0, heads, t0, count;
  // Dividing costs more than the rest of a row's bookkeeping.
  int64_t t(int64_t r) const { return t0 + (heads == 1 ? r : r / heads); }
  int64_t h(int64_t r) const { return h0 + (heads == 1 ? 0 : r % heads); }
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

// Row r's place in lse; times S, the dropout index of its weight for key 0.
inline int64_t RowIndex(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return (rows.b * a.H + rows.h(r)) * a.T_ + rows.t(r);
}

// Asks for what the item after the current one will read and write, a few rows at each of `steps`
// steps: a head's rows lie far apart, but in a cache, and whoever is first waits for memory.
class Ahead {
 public:
  // `rows` are the next item's. Forward writes z; backward reads it and dz, and writes gradients.
  Ahead(const AttentionArgs<>& a, const Rows& rows, bool backward, int64_t steps)
      : a_(a), rows_(rows), backward_(backward), keys_(a.k + KeyOffset(a, rows)) {
    const int64_t all = rows.count + a.S;
    if (a.kv_row > a.D && all * a.D <= kMaxAhead) per_step_ = (all + steps - 1) / steps;
    writes_ = all * a.D <= kMaxAhead / 2;
  }
  void Step() {
    for (int64_t end = next_ + per_step_; next_ < end; ++next_) {
      if (next_ < rows_.count) {
        const float* query = QueryRow(a_, rows_, next_);
        Fetch(query);
        if (backward_ || writes_) Fetch(a_.z + OutputOffset(a_, rows_, next_));
        if (backward_) Fetch(a_.dz + OutputOffset(a_, rows_, next_));
        if (backward_ && writes_) Fetch(a_.dq + (query - a_.q));
      } else if (next_ < rows_.count + a_.S) {
        const int64_t offset = (next_ - rows_.count) * a_.kv_row;
        Fetch(keys_ + offset);
        Fetch(keys_ + (a_.v - a_.k) + offset);
        if (!backward_ || !writes_) continue;
        Fetch(a_.dk + (keys_ - a_.k) + offset);
        Fetch(a_.dv + (keys_ - a_.k) + offset);
      }
    }
  }

 private:
  // Numbers: with z, dz and v some 300 KiB. Half as many leave room for what is written.
  static constexpr int64_t kMaxAhead = 1 << 15;

  void Fetch(const float* row) const {
    for (int64_t i = 0; i < a_.D; i += 16) __builtin_prefetch(row + i, 0, 2);
  }

  const AttentionArgs<>& a_;
  Rows rows_;
  bool backward_, writes_;
  const float* keys_;
  int64_t per_step_ = 0, next_ = 0;
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

// ---- Register tiles

// What the words of a product's factors hold: numbers, or pairs of bfloat16 along k.
struct Numbers {
  static constexpr int64_t kPerWord = 1;
  static HWY_INLINE Vec MulAdd(Vec a, Vec b, Vec sum) { return hn::MulAdd(a, b, sum); }
};

int64_t Words(int64_t numbers, int64_t per_word) { return (numbers + per_word - 1) / per_word; }

// C(r, :) = start + sum over k0 <= k < k1 of A(r, k) B(k, :), in order of k. Every row is a chain
// of multiply-adds of its own, so its bits do not depend on the number of rows or columns.
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

template <class Word, Start kStart, int kRows, int kCols>
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
      for (int c = 0; c < kCols; ++c) sum[r][c] = Word::MulAdd(x, row[c], sum[r][c]);
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
        for (int c = 0; c < kCols; ++c) sum[r][c] = Word::MulAdd(x, row[c], sum[r][c]);
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

template <class Word, Start kStart, int kRows>
void RowsOf(const Product& p, int64_t cols) {
  static_assert(kVecs == 2 || kVecs == 4);
  if (cols == 1) return Tile<Word, kStart, kRows, 1>(p);
  if (cols == 2) return Tile<Word, kStart, kRows, 2>(p);
  if constexpr (kVecs == 4) {
    if (cols == 3) return Tile<Word, kStart, kRows, 3>(p);
    return Tile<Word, kStart, kRows, 4>(p);
  }
}

// A product of 1 to kBlock rows and any number of vectors of columns.
template <class Word, Start kStart>
void BlockProduct(Product p, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kVecs) {
    const int64_t n = std::min<int64_t>(kVecs, cols - c);
    switch (rows) {
      case 1:
        RowsOf<Word, kStart, 1>(p, n);
        break;
      case 2:
        RowsOf<Word, kStart, 2>(p, n);
        break;
      case 3:
        RowsOf<Word, kStart, 3>(p, n);
        break;
      case 4:
        RowsOf<Word, kStart, 4>(p, n);
        break;
      case 5:
        RowsOf<Word, kStart, 5>(p, n);
        break;
      default:
        RowsOf<Word, kStart, 6>(p, n);
    }
    p.b += kVecs * kLanes;
    p.c += kVecs * kLanes;
  }
}

// ---- Packing

// out [padded] = factor · in [D], zeros from D on.
HWY_INLINE void PackRow(const float* in, int64_t D, float factor, float* out) {
  ForVectors(D, [&](size_t i, auto lanes) HWY_ATTR {
    hn::StoreU(hn::Mul(lanes.Load(in + i), Set(factor)), Tag(), out + i);
  });
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

// out, the words of factor · in [D]; of numbers with zeros up to a whole vector.
template <class Word>
HWY_INLINE void PackWords(const float* in, int64_t D, float factor, float* out) {
  if constexpr (Word::kPerWord == 1) {
    PackRow(in, D, factor, out);
  } else {
    const Tag d;
    const Vec scale = hn::Set(d, factor);
    for (int64_t i = 0; i < D; i += 2 * kLanes) {
      hn::StoreU(Word::Round(hn::Mul(hn::LoadU(d, in + i), scale),
                             hn::Mul(hn::LoadU(d, in + i + kLanes), scale)),
                 d, out + i / 2);
    }
  }
}

// out [words, padded] = factor · row(j) [D] of j < n, each word down the rows.
template <class Word, class Row>
HWY_INLINE void PackDown(int64_t n, int64_t D, float factor, int64_t padded, const Row& row,
                         float* out) {
  if constexpr (Word::kPerWord == 1) {
    for (int64_t j = 0; j < n; ++j) PackRow(row(j), D, factor, out + j * padded);
  } else {
    const Tag d;
    const Vec scale = hn::Set(d, factor);
    for (int64_t j = 0; j < n; j += 2, out += padded) {
      const float* low = row(j);
      const float* high = row(std::min(j + 1, n - 1));
      const Vec second = j + 1 < n ? scale : hn::Zero(d);
      for (int64_t i = 0; i < D; i += kLanes) {
        hn::StoreU(Word::Interleave(hn::Mul(hn::LoadU(d, low + i), scale),
                                    hn::Mul(hn::LoadU(d, high + i), second)),
                   d, out + i);
      }
    }
  }
}

// out [words of D, kTile], the words of n keys `stride` apart, transposed; `room` holds them.
template <class Word>
void PackKeys(const float* in, int64_t stride, int64_t n, int64_t D, float* room, float* out) {
  if constexpr (Word::kPerWord == 1) {
    PackTransposed(in, stride, n, D, out);
  } else {
    for (int64_t j = 0; j < n; ++j) PackWords<Word>(in + j * stride, D, 1, room + j * D / 2);
    PackTransposed(room, D / 2, n, D / 2, out);
  }
}

struct Constant {
  float x;
  float operator()(int64_t) const { return x; }
};

// target(r) [D] = factor(r) · row r of in [rows, padded].
template <class Factor, class Target>
void StoreRows(const float* in, int64_t rows, int64_t padded, int64_t D, const Factor& factor,
               const Target& target) {
  const Tag d;
  for (int64_t r = 0; r < rows; ++r, in += padded) {
    const float scale = factor(r);
    float* out = target(r);
    ForVectors(D, [&](size_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Mul(hn::Load(d, in + i), hn::Set(d, scale)), out + i);
    });
  }
}

// ---- Forward

// The part of a key tile that each row of a block sees: keys first[r] <= j < last[r] of the tile.
struct BlockSight {
  int64_t rows;
  int64_t first[kBlock], last[kBlock];

  // The block that starts at row r0; rows from r1 on do not count.
  BlockSight(const Sight& sight, const Rows& all, int64_t r0, int64_t r1, int64_t key0)
      : rows(std::min(kBlock, r1 - r0)) {
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
  const Tag d;
  const int64_t columns = sight.vectors() * kLanes;
  alignas(64) float factors[kTile];
  for (int64_t r = 0; r < sight.rows; ++r) {
    DropoutFactors(a.dropout, RowIndex(a, rows, r0 + r) * a.S + key0, columns, factors);
    float* row = weights + r * kTile;
    for (int64_t j = 0; j < columns; j += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, row + j), hn::Load(d, factors + j)), d, row + j);
    }
  }
}

// z [rows, padded] = factor · z + weights [rows, kTile] · v, over the keys each row sees.
template <class Word>
void AddValues(const BlockSight& sight, const float* weights, const float* factor, const float* v,
               int64_t v_row, float* z, int64_t padded) {
  Product p;
  p.b = v, p.b_row = v_row;
  p.c_row = padded;
  p.factor = factor;
  if constexpr (Word::kPerWord > 1) {
    // A word may hold a weight that is hidden; it is 0.
    alignas(64) float words[kBlock * kTile / 2];
    for (int64_t r = 0; r < sight.rows; ++r) {
      PackWords<Word>(weights + r * kTile, kTile, 1, words + r * kTile / 2);
    }
    int64_t last[kBlock];
    p.k0 = sight.first[0] / 2;
    p.k1 = Words(sight.last[sight.rows - 1], 2);
    std::fill(last, last + kBlock, p.k1);
    p.a = words, p.a_row = kTile / 2;
    p.c = z;
    p.last = last;
    BlockProduct<Word, Start::kScale>(p, sight.rows, padded / kLanes);
    return;
  }
  if (sight.first[sight.rows - 1] == 0) {
    p.a = weights, p.a_row = kTile;
    p.c = z;
    p.k1 = sight.last[0];
    p.last = sight.last;
    BlockProduct<Word, Start::kScale>(p, sight.rows, padded / kLanes);
    return;
  }
  for (int64_t r = 0; r < sight.rows; ++r) {
    p.a = weights + r * kTile;
    p.c = z + r * padded;
    p.k0 = sight.first[r], p.k1 = std::max(sight.first[r], sight.last[r]);
    p.factor = factor + r;
    p.last = &p.k1;
    BlockProduct<Word, Start::kScale>(p, 1, padded / kLanes);
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

template <class Word>
void ForwardRows(const AttentionArgs<>& a, const Rows& rows, const Rows& next) {
  const Tag d;
  const int64_t D = a.D, padded = RoundUp(D), count = rows.count, words = Words(D, Word::kPerWord);
  Scratch scratch(count * (D + padded + kLanes + 2) + (kBlock + 2 * D + padded) * kTile +
                  4 * kLanes);
  float* q = scratch.Take(count * words + kLanes);
  float* z = scratch.Take(count * padded);
  float* sum = scratch.Take(count * kLanes);
  float* max = scratch.Take(count + kLanes);
  float* total = scratch.Take(count + kLanes);
  float* scores = scratch.Take(kBlock * kTile);
  float* keys = scratch.Take(words * kTile);
  float* key_words = scratch.Take(words * kTile);
  float* packed_values = scratch.Take(kTile * padded);
  float factor[kBlock];

  for (int64_t r = 0; r < count; ++r) {
    PackWords<Word>(QueryRow(a, rows, r), D, a.scale, q + r * words);
    max[r] = kHidden;
  }
  std::fill(z, z + count * padded, 0.0f);
  std::fill(sum, sum + count * kLanes, 0.0f);

  const Sight sight(a, rows.b);
  const int64_t first = std::max<int64_t>(0, sight.First(rows.t0));
  const int64_t last = sight.Last(rows.t(count - 1));
  Ahead ahead(a, next, false, std::max<int64_t>(1, (last - first) / kTile) * (count / kBlock + 1));
  for (int64_t key0 = first / kTile * kTile; key0 < last; key0 += kTile) {
    const int64_t n = std::min(kTile, last - key0);
    const int64_t offset = KeyOffset(a, rows) + key0 * a.kv_row;
    PackKeys<Word>(a.k + offset, a.kv_row, n, D, key_words, keys);
    const float* values = a.v + offset;
    int64_t values_row = a.kv_row;
    // In place, the vectors of a row read numbers of later keys: those must be there.
    const bool in_place = Word::kPerWord == 1 && (last - key0 - n) * a.kv_row + D >= padded;
    if (!in_place || count > kBlock) {
      PackDown<Word>(
          n, D, 1, padded, [&](int64_t j) { return a.v + offset + j * a.kv_row; }, packed_values);
      values = packed_values;
      values_row = padded;
    }
    for (int64_t r0 = 0; r0 < count; r0 += kBlock) {
      const BlockSight block(sight, rows, r0, count, key0);
      if (block.Empty()) continue;
      ahead.Step();
      Product p;
      p.a = q + r0 * words, p.a_row = words;
      p.b = keys, p.b_row = kTile;
      p.c = scores, p.c_row = kTile;
      p.k1 = words;
      BlockProduct<Word, Start::kZero>(p, block.rows, block.vectors());
      SoftmaxStep(block, scores, max + r0, sum + r0 * kLanes, factor);
      if (a.dropout.p > 0) DropWeights(a, rows, r0, key0, block, scores);
      AddValues<Word>(block, scores, factor, values, values_row, z + r0 * padded, padded);
    }
  }
  for (int64_t r = 0; r < count; ++r) total[r] = ReduceSum(hn::Load(d, sum + r * kLanes));
  for (int64_t r = 0; r < count; r += kLanes) {
    const Vec totals = hn::Load(d, total + r);
    StoreLse(a, rows, r, hn::Load(d, max + r), totals);
    hn::Store(Shares(totals), d, total + r);
  }
  StoreRows(
      z, count, padded, D, [&](int64_t r) { return total[r]; },
      [&](int64_t r) { return a.z + OutputOffset(a, rows, r); });
}

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

#if HWY_TARGET == HWY_AVX3
// Heads of whole vectors of pairs. However few rows there are: a row's bits may not depend on it.
bool MultipliesPairs(const AttentionArgs<>& a) {
  return a.arithmetic != Arithmetic::kF32 && a.D % (2 * kLanes) == 0 && Bf16Pairs::Supported();
}
#endif

void Forward(const AttentionArgs<>& a) {
  if (a.B * a.T_ * a.H * a.D == 0) return;
  if (a.D <= kSmallWidth && HeadsFillLanes(a)) return ForLaneHeads(a, kForwardHeads[a.D - 1]);
  const int64_t group = a.H / a.Hkv;
  const auto tiles = [&](int64_t heads) {
    return (a.T_ * heads + kForwardRows - 1) / kForwardRows;
  };
  // A group's heads share packed keys, unless that leaves too little to share out.
  const int64_t heads = a.B * a.Hkv * tiles(group) >= 4 ? group : 1;
  const int64_t queries = (a.T_ + tiles(heads) - 1) / tiles(heads);
  const int64_t per_head = (a.T_ + queries - 1) / queries, bundles = a.H / heads;
  const int64_t items = a.B * bundles * per_head;
  auto* forward = &ForwardRows<Numbers>;
#if HWY_TARGET == HWY_AVX3
  if (MultipliesPairs(a)) forward = &ForwardRows<Bf16Pairs>;
#endif
  const auto rows = [&](int64_t item) {
    const int64_t t0 = item % per_head * queries, bundle = item / per_head;
    return Rows{bundle / bundles, bundle % bundles * heads, heads, t0,
                std::min(queries, a.T_ - t0) * heads};
  };
  ForItems(items, queries * heads * a.S * a.D, [&](int64_t item) {
    if (a.D <= kSmallWidth) {
      kForwardLanes[a.D - 1](a, rows(item));
    } else {
      forward(a, rows(item), rows(std::min(item + 1, items - 1)));
    }
  });
}

// ---- Backward

// The gradients of scores and values in one block of rows: weights [rows, kTile] enter as scaled
// scores and leave as softmax weights times their dropout factors, zero where hidden; dweights
// enters as dz·v and leaves as the gradient of the scaled scores.
HWY_NOINLINE void BackwardStep(const AttentionArgs<>& a, const Rows& rows, int64_t r0, int64_t key0,
                               const BlockSight& sight, const float* lse, const float* delta,
                               float* weights, float* dweights) {
  const Tag d;
  const int64_t columns = sight.vectors() * kLanes;
  alignas(64) float factors[kTile];
  for (int64_t r = 0; r < sight.rows; ++r) {
    float* row = weights + r * kTile;
    float* drow = dweights + r * kTile;
    if (a.dropout.p > 0) {
      DropoutFactors(a.dropout, RowIndex(a, rows, r0 + r) * a.S + key0, columns, factors);
    }
    const bool whole = sight.Whole(r);
    const Vec base = hn::Set(d, lse[r]), mean = hn::Set(d, delta[r]);
    for (int64_t j = 0; j < columns; j += kLanes) {
      Vec score = hn::Load(d, row + j);
      if (!whole) score = Visible(sight, r, j, score);
      const Vec weight = Exp(hn::Sub(score, base));
      Vec dweight = hn::Load(d, drow + j);
      Vec kept = weight;
      if (a.dropout.p > 0) {
        const Vec factor = hn::Load(d, factors + j);
        dweight = hn::Mul(dweight, factor);
        kept = hn::Mul(weight, factor);
      }
      hn::Store(kept, d, row + j);
      hn::Store(hn::Mul(weight, hn::Sub(dweight, mean)), d, drow + j);
    }
    for (int64_t j = columns; j < kTile; j += kLanes) {
      hn::Store(hn::Zero(d), d, row + j);
      hn::Store(hn::Zero(d), d, drow + j);
    }
  }
}

// Adds to out [n, padded], a row per key of a tile, the sum over rows of weights [rows, kTile]
// transposed times x [rows, padded], both in words down the rows: only the rows that see a key
// count.
template <class Word>
void AddTransposed(const Sight& sight, const Rows& all, int64_t row0, int64_t rows, int64_t key0,
                   int64_t n, const float* weights, const float* x, int64_t padded, float* out) {
  for (int64_t j = 0; j < n; j += kBlock) {
    const int64_t keys = std::min(kBlock, n - j);
    // Key s is seen by queries s .. s + window - 1 (backward has as many keys as queries).
    const int64_t first = (key0 + j - all.t0) * all.heads - row0;
    const int64_t last = (key0 + j + keys - 1 + sight.window - all.t0) * all.heads - row0;
    Product p;
    p.a = weights + j, p.a_row = 1, p.a_k = kTile;
    p.b = x, p.b_row = padded;
    p.c = out + j * padded, p.c_row = padded;
    p.k0 = std::max<int64_t>(0, first) / Word::kPerWord;
    p.k1 = Words(sight.window > 0 ? std::min(rows, last) : rows, Word::kPerWord);
    BlockProduct<Word, Start::kAdd>(p, keys, padded / kLanes);
  }
}

// For every row, lse, and delta = sum over s of A dA, which is z·dz: the softmax's Jacobian needs
// it.
void LoadRowSums(const AttentionArgs<>& a, const Rows& rows, float* delta, float* lse) {
  const Tag d;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t offset = OutputOffset(a, rows, r);
    Vec total = hn::Zero(d);
    int64_t i = 0;
    for (; i + kLanes <= a.D; i += kLanes) {
      total = hn::MulAdd(hn::LoadU(d, a.z + offset + i), hn::LoadU(d, a.dz + offset + i), total);
    }
    delta[r] = ReduceSum(total);
    for (; i < a.D; ++i) delta[r] += a.z[offset + i] * a.dz[offset + i];
    lse[r] = a.lse[RowIndex(a, rows, r)];
  }
}

// Key tiles strip, strip + strips, .. of one key/value head: sets dk and dv there, and dq, or with
// `partial` [rows, padded] this strip's share of it, before the scale.
// `next` are the rows of the item that follows.
template <class Word>
void BackwardStrip(const AttentionArgs<>& a, const Rows& rows, int64_t strip, int64_t strips,
                   float* partial, const Rows& next) {
  constexpr bool kPairs = Word::kPerWord > 1;
  const int64_t D = a.D, padded = RoundUp(D), count = rows.count, words = Words(D, Word::kPerWord);
  // Pairs along the head and pairs down the rows are different words, numbers are the same.
  const int64_t row = kPairs ? words : padded, block_row = kPairs ? kTile / 2 : kTile;
  Scratch scratch(count * (padded + 2) + kBackwardRows * (3 * padded + 3 * kTile) +
                  kTile * (3 * D + 3 * padded) + kBlock * kTile);
  float* delta = scratch.Take(count);
  float* lse = scratch.Take(count);
  float* q = scratch.Take(kBackwardRows * row);
  float* dz = scratch.Take(kBackwardRows * row);
  float* q_down = kPairs ? scratch.Take(kBackwardRows / 2 * padded) : q;
  float* dz_down = kPairs ? scratch.Take(kBackwardRows / 2 * padded) : dz;
  float* weights = scratch.Take(kBackwardRows * kTile);
  float* dweights = scratch.Take(kBackwardRows * kTile);
  float* weights_down = kPairs ? scratch.Take(kBackwardRows / 2 * kTile) : weights;
  float* dweights_down = kPairs ? scratch.Take(kBackwardRows / 2 * kTile) : dweights;
  float* block_words = kPairs ? scratch.Take(kBlock * block_row) : nullptr;
  float* keys_down = scratch.Take(kTile * padded);
  float* key_words = scratch.Take(kTile * words);
  float* keys_transposed = scratch.Take(kTile * words);
  float* values_transposed = scratch.Take(kTile * words);
  float* dk = scratch.Take(kTile * padded);
  float* dv = scratch.Take(kTile * padded);
  float* dq = partial ? partial : scratch.Take(count * padded);
  std::fill(dq, dq + count * padded, 0.0f);

  LoadRowSums(a, rows, delta, lse);
  const Sight sight(a, rows.b);
  Ahead ahead(a, next, true, count / kBlock + 1);
  for (int64_t key0 = strip * kTile; key0 < a.S; key0 += strips * kTile) {
    const int64_t n = std::min(kTile, a.S - key0);
    const int64_t offset = KeyOffset(a, rows) + key0 * a.kv_row;
    PackKeys<Word>(a.k + offset, a.kv_row, n, D, key_words, keys_transposed);
    PackKeys<Word>(a.v + offset, a.kv_row, n, D, key_words, values_transposed);
    PackDown<Word>(
        n, D, 1, padded, [&](int64_t j) { return a.k + offset + j * a.kv_row; }, keys_down);
    std::fill(dk, dk + n * padded, 0.0f);
    std::fill(dv, dv + n * padded, 0.0f);

    const int64_t end = a.window > 0 ? std::min(a.T_, key0 + n - 1 + a.window) : a.T_;
    for (int64_t row0 = key0 * rows.heads; row0 < end * rows.heads; row0 += kBackwardRows) {
      const int64_t chunk = std::min(kBackwardRows, end * rows.heads - row0);
      const auto query = [&](int64_t r) { return QueryRow(a, rows, row0 + r); };
      const auto gradient = [&](int64_t r) { return a.dz + OutputOffset(a, rows, row0 + r); };
      for (int64_t r = 0; r < chunk; ++r) {
        PackWords<Word>(query(r), D, a.scale, q + r * row);
        PackWords<Word>(gradient(r), D, 1, dz + r * row);
      }
      if constexpr (kPairs) {
        PackDown<Word>(chunk, D, a.scale, padded, query, q_down);
        PackDown<Word>(chunk, D, 1, padded, gradient, dz_down);
      }
      for (int64_t r = 0; r < chunk; r += kBlock) {
        const BlockSight block(sight, rows, row0 + r, row0 + chunk, key0);
        float* block_weights = weights + r * kTile;
        float* block_dweights = dweights + r * kTile;
        ahead.Step();
        Product p;
        p.a_row = row;
        p.b_row = kTile;
        p.c_row = kTile;
        p.k1 = words;
        p.a = q + r * row, p.b = keys_transposed, p.c = block_weights;
        BlockProduct<Word, Start::kZero>(p, block.rows, block.vectors());
        p.a = dz + r * row, p.b = values_transposed, p.c = block_dweights;
        BlockProduct<Word, Start::kZero>(p, block.rows, block.vectors());
        BackwardStep(a, rows, row0 + r, key0, block, lse + row0 + r, delta + row0 + r,
                     block_weights, block_dweights);
        Product to_query;
        to_query.a = block_dweights, to_query.a_row = block_row;
        if constexpr (kPairs) {
          const auto weight = [&](int64_t i) { return block_weights + i * kTile; };
          const auto dweight = [&](int64_t i) { return block_dweights + i * kTile; };
          PackDown<Word>(block.rows, kTile, 1, kTile, weight, weights_down + r / 2 * kTile);
          PackDown<Word>(block.rows, kTile, 1, kTile, dweight, dweights_down + r / 2 * kTile);
          for (int64_t i = 0; i < block.rows; ++i) {
            PackWords<Word>(dweight(i), kTile, 1, block_words + i * block_row);
          }
          to_query.a = block_words;
        }
        to_query.b = keys_down, to_query.b_row = padded;
        to_query.c = dq + (row0 + r) * padded, to_query.c_row = padded;
        to_query.k0 = block.first[0] / Word::kPerWord;
        to_query.k1 = Words(block.last[block.rows - 1], Word::kPerWord);
        BlockProduct<Word, Start::kAdd>(to_query, block.rows, padded / kLanes);
      }
      AddTransposed<Word>(sight, rows, row0, chunk, key0, n, weights_down, dz_down, padded, dv);
      AddTransposed<Word>(sight, rows, row0, chunk, key0, n, dweights_down, q_down, padded, dk);
    }
    StoreRows(dk, n, padded, D, Constant{1},
              [&](int64_t j) { return a.dk + offset + j * a.kv_row; });
    StoreRows(dv, n, padded, D, Constant{1},
              [&](int64_t j) { return a.dv + offset + j * a.kv_row; });
  }
  if (partial) return;
  StoreRows(dq, count, padded, D, Constant{a.scale},
            [&](int64_t r) { return a.dq + (QueryRow(a, rows, r) - a.q); });
}

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

// Sets dq from the shares [strips, rows, padded] of it, added in order into the first.
void SumStrips(const AttentionArgs<>& a, const Rows& rows, int64_t strips, float* shares) {
  const Tag d;
  const int64_t padded = RoundUp(a.D), size = rows.count * padded;
  for (int64_t s = 1; s < strips; ++s) {
    for (int64_t j = 0; j < size; j += kLanes) {
      hn::Store(hn::Add(hn::Load(d, shares + j), hn::Load(d, shares + s * size + j)), d,
                shares + j);
    }
  }
  StoreRows(shares, rows.count, padded, a.D, Constant{a.scale},
            [&](int64_t r) { return a.dq + (QueryRow(a, rows, r) - a.q); });
}

void Backward(const AttentionArgs<>& a) {
  if (a.B * a.T_ * a.H * a.D == 0) return;
  if (a.D <= kSmallWidth && HeadsFillLanes(a)) return ForLaneHeads(a, kBackwardHeads[a.D - 1]);
  const int64_t group = a.H / a.Hkv, heads = a.B * a.Hkv, rows = a.T_ * group;
  const int64_t tiles = (a.S + kTile - 1) / kTile;
  // Few key/value heads are cut into strips of key tiles, each with a dq of its own.
  const int64_t strips = std::clamp<int64_t>(kLeastPieces / heads, 1, tiles);
  const auto head = [&](int64_t i) { return Rows{i / a.Hkv, i % a.Hkv * group, group, 0, rows}; };
  if (a.D <= kSmallWidth) {
    ForItems(heads, rows * a.S * a.D, [&](int64_t i) { kBackwardLanes[a.D - 1](a, head(i)); });
    return;
  }
  const int64_t size = rows * RoundUp(a.D);
  Buffer partials(strips > 1 ? heads * strips * size * sizeof(float) : 0);
  auto* backward = &BackwardStrip<Numbers>;
#if HWY_TARGET == HWY_AVX3
  if (MultipliesPairs(a)) backward = &BackwardStrip<Bf16Pairs>;
#endif
  ForItems(heads * strips, rows * a.S * a.D / strips, [&](int64_t item) {
    backward(a, head(item / strips), item % strips, strips,
             strips > 1 ? partials.floats() + item * size : nullptr,
             head(std::min(item / strips + 1, heads - 1)));
  });
  if (strips == 1) return;
  ForItems(heads, size * strips, [&](int64_t i) {
    SumStrips(a, head(i), strips, partials.floats() + i * strips * size);
  });
}

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
