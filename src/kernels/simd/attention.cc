#include "kernels/simd/attention.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/attention-inl.h"
#include "kernels/simd/attention_lanes-inl.h"
#include "kernels/simd/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

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
