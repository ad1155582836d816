// Packed panels and register tiles after Goto, van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008), and Van Zee, van de Geijn, "BLIS" (2015). There is one inner kernel: it
// continues kRows x kWidth chains of multiply-adds over some range of k. Large products run it on
// packed copies of A and B; products with few rows, bound by reading B, run it on B where it lies.
//
// All of it is templated on an engine, which says what a word of a packed operand is (a float or
// two bfloat16, in storage of type float), how words are made, and how they are multiplied:
//   kPerWord    numbers of k in a word; those past the end of K are 0
//   kInPlace    whether a word is a number as it stands in A or B
//   kPackedWords  whether a word is one of a B packed in bfloat16
//   MulAdd      sum + a · b, over the numbers of a word
//   Pack, Line  words from numbers; see FloatEngine
//   Round       numbers to bfloat16, where kRounds: those engines take such operands too
// Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_MATMUL_INL_H_
#undef HEED_KERNELS_SIMD_MATMUL_INL_H_
#else
#define HEED_KERNELS_SIMD_MATMUL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/buffer.h"
#include "base/parallel.h"
#include "kernels/args.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int kLanes = hn::MaxLanes(D());
constexpr int kVectors = 2;
constexpr int kWidth = kVectors * kLanes;
// As many as the registers hold: 32 with AVX-512, else 16. Every height from 4 up reaches the
// arithmetic ceiling; the tallest reads the least.
constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 14 : 6;
// Distance of the columns of a packed panel of A.
constexpr int kPanelRows = (kRows + kLanes - 1) / kLanes * kLanes;

constexpr int kCacheLine = 16;  // floats

constexpr int64_t DivideUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return DivideUp(n, unit) * unit; }

// The first min(n, lanes) numbers at p, the rest 0; nothing beyond them is read.
template <class Tag>
HWY_INLINE hn::Vec<Tag> LoadFirst(Tag d, const float* HWY_RESTRICT p, int64_t n) {
  if (n >= static_cast<int64_t>(hn::MaxLanes(d))) return hn::LoadU(d, p);
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#else
  float lanes[hn::MaxLanes(Tag())] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return hn::LoadU(d, lanes);
#endif
}

template <class Tag>
HWY_INLINE void StoreFirst(hn::Vec<Tag> v, Tag d, float* HWY_RESTRICT p, int64_t n) {
  if (n >= static_cast<int64_t>(hn::MaxLanes(d))) {
    hn::StoreU(v, d, p);
  } else {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
  }
}

// Asks for a matrix that will be needed soon, a few lines at a time: its rows lie too far apart for
// the processor to guess them, and it drops much of what is asked for at once.
class Fetcher {
 public:
  Fetcher() = default;
  Fetcher(const float* at, int64_t row, int64_t column, int64_t rows, int64_t columns)
      : at_(at),
        stride_(column == 1 ? row : column),
        runs_(column == 1 ? rows : columns),
        length_(column == 1 ? columns : rows) {}

  Fetcher(const uint16_t* at, int64_t row, int64_t column, int64_t rows, int64_t columns)
      : at_(reinterpret_cast<const float*>(at)),
        stride_((column == 1 ? row : column) / 2),
        runs_(column == 1 ? rows : columns),
        length_(DivideUp(column == 1 ? columns : rows, 2)) {}

  int64_t lines() const { return runs_ * DivideUp(length_, kCacheLine); }
  void Allow(int64_t lines) { allowed_ += lines; }
  // The first of `parts` parts of what is allowed.
  HWY_INLINE void Part(int64_t parts) {
    int64_t lines = allowed_ / parts;
    allowed_ -= lines;
    for (; lines > 0 && runs_ > 0; --lines) {
      __builtin_prefetch(at_ + at_column_);
      at_column_ += kCacheLine;
      if (at_column_ < length_) continue;
      at_column_ = 0;
      at_ += stride_;
      --runs_;
    }
  }

 private:
  const float* at_ = nullptr;
  int64_t stride_ = 0, runs_ = 0, length_ = 0;  // runs of `length` numbers
  int64_t at_column_ = 0, allowed_ = 0;
};

constexpr int64_t kFetchParts = 16;  // of a packed tile, with what it asks for shared among them

struct TileArgs {
  int64_t words = 0;         // of k
  const float* a = nullptr;  // [rows, words]; a_row, a_col are those of a packed panel if kPacked
  int64_t a_row = 0, a_col = 0;
  const float* b = nullptr;  // [words, kVec vectors], whole vectors
  int64_t b_row = 0;
  const float* init = nullptr;  // what the chains start from: [rows, kVec vectors], or null for 0
  int64_t init_row = 0;
  float* out = nullptr;  // may be init
  int64_t out_row = 0;
  std::array<Fetcher*, 5> fetch = {};  // what a packed tile asks for meanwhile; null ends them
};

template <class Engine, int kTileRows, int kVec, bool kPacked>
void Tile(const TileArgs& args) {
  const D d;
  const float* a = args.a;
  const float* b = args.b;
  const int64_t a_row = kPacked ? 1 : args.a_row, a_col = kPacked ? kPanelRows : args.a_col;
  const int64_t b_row = args.b_row;
  V sum[kTileRows][kVec];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVec; ++j) sum[i][j] = hn::Zero(d);
  }
  if (args.init != nullptr) {
    const float* init = args.init;
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i, init += args.init_row) {
#pragma GCC unroll 16
      for (int j = 0; j < kVec; ++j) sum[i][j] = hn::LoadU(d, init + j * kLanes);
    }
  }
  int64_t left = args.words;
  for (int64_t parts = kPacked ? kFetchParts : 1; parts > 0; --parts) {
    for (int i = 0; args.fetch[i] != nullptr; ++i) args.fetch[i]->Part(parts);
    const int64_t part = left / parts;
    left -= part;
    for (int64_t k = part; k > 0; --k) {
      V bk[kVec];
#pragma GCC unroll 16
      for (int j = 0; j < kVec; ++j) bk[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kTileRows; ++i) {
        const V ai = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 16
        for (int j = 0; j < kVec; ++j) sum[i][j] = Engine::MulAdd(ai, bk[j], sum[i][j]);
      }
      a += a_col;
      b += b_row;
    }
  }
  float* out = args.out;
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i, out += args.out_row) {
#pragma GCC unroll 16
    for (int j = 0; j < kVec; ++j) hn::StoreU(sum[i][j], d, out + j * kLanes);
  }
}

using TileFunction = void (*)(const TileArgs&);

template <class Engine, bool kPacked, size_t... kIndex>
constexpr auto MakeTiles(std::index_sequence<kIndex...>) {
  return std::array<TileFunction, sizeof...(kIndex)>{
      &Tile<Engine, kIndex / kVectors + 1, kIndex % kVectors + 1, kPacked>...};
}

// Columns of a tile of one row: as many chains as hide a multiply-add's time.
constexpr int64_t kRowVectors = 8;

template <class Engine, bool kPacked>
void RunTile(int64_t rows, int64_t vectors, const TileArgs& args) {
  static constexpr auto kTiles =
      MakeTiles<Engine, kPacked>(std::make_index_sequence<kRows * kVectors>());
  kTiles[(rows - 1) * kVectors + vectors - 1](args);
}

template <class Engine, size_t... kIndex>
void RunRowTile(int64_t vectors, const TileArgs& args, std::index_sequence<kIndex...>) {
  static constexpr std::array<TileFunction, sizeof...(kIndex)> kTiles = {
      &Tile<Engine, 1, kIndex + 1, false>...};
  kTiles[vectors - 1](args);
}

// At most 256 bits: half as wide, loads and shuffles are more than twice as many per cycle.
using Narrow = hn::CappedTag<float, 8>;
constexpr int kNarrow = hn::MaxLanes(Narrow());

#if HWY_TARGET != HWY_SCALAR
// rows[q] = number k + q of each of kNarrow lines.
HWY_INLINE void Transpose4(const float* const* HWY_RESTRICT lines, int64_t k,
                           hn::Vec<Narrow>* HWY_RESTRICT rows) {
  const Narrow d;
  const hn::Repartition<double, Narrow> pairs;
  const auto iota = hn::Iota(d, 0.0f);
  hn::Vec<Narrow> v[4];
  // Block j of v[i] holds line 4j + i: the loads move the blocks, so that the rest stays in lanes.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = hn::LoadDup128(d, lines[i] + k);
#pragma GCC unroll 4
    for (int j = 1; j < kNarrow / 4; ++j) {
      v[i] = hn::IfThenElse(hn::Ge(iota, hn::Set(d, 4.0f * j)),
                            hn::LoadDup128(d, lines[4 * j + i] + k), v[i]);
    }
  }
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v[0], v[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v[2], v[3]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[0], v[1]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[2], v[3]));
  rows[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23));
  rows[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23));
  rows[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23));
  rows[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23));
}
#endif

// panel[k][i] = lines[i][k] for i < kNarrow, k < K; the panel's rows have `width` numbers. `ahead`
// (may be null) is fetched meanwhile, K · kNarrow numbers of it.
HWY_INLINE void PackLines(const float* const* HWY_RESTRICT lines, int64_t K, int64_t width,
                          float* HWY_RESTRICT panel,
                          [[maybe_unused]] const float* ahead = nullptr) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; k + 4 <= K; k += 4) {
    for (int i = 0; ahead != nullptr && i < 4 * kNarrow; i += kCacheLine, ahead += kCacheLine) {
      __builtin_prefetch(ahead, 0, 2);
    }
    hn::Vec<Narrow> rows[4];
    Transpose4(lines, k, rows);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) hn::StoreU(rows[q], Narrow(), panel + (k + q) * width);
  }
#endif
  for (; k < K; ++k) {
    for (int64_t i = 0; i < kNarrow; ++i) panel[k * width + i] = lines[i][k];
  }
}

// Rows of a matrix lie too far apart for the processor to guess the next.
constexpr int64_t kRowsAhead = 12;

// float32: a word is a number.
struct FloatEngine {
  static constexpr int64_t kPerWord = 1;
  static constexpr bool kInPlace = true;
  static constexpr bool kPackedWords = false;
  static constexpr bool kRounds = false;

  static HWY_INLINE V MulAdd(V a, V b, V sum) { return hn::MulAdd(a, b, sum); }

  // panel[k][n] = src[n·step + k·k_step] for n < count, k < K; one of the steps is 1. The panel's
  // rows have `width` words, whole vectors; those from `count` on are 0 or copies of others. Where
  // k_step is 1, `ahead` (may be null) is what will be read soon, of the panel's size: fetched in
  // the order of addresses it comes from memory 2.5 times as fast as line by line.
  static void Pack(const float* src, int64_t step, int64_t k_step, int64_t count, int64_t K,
                   int64_t width, float* HWY_RESTRICT panel, const float* ahead = nullptr) {
    const D d;
    if (step == 1) {
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t n = 0; n < width; n += kCacheLine) {
          __builtin_prefetch(src + (k + kRowsAhead) * k_step + n);
        }
        for (int64_t n = 0; n < width; n += kLanes) {
          const V v = n < count ? LoadFirst(d, src + k * k_step + n, count - n) : hn::Zero(d);
          hn::StoreU(v, d, panel + k * width + n);
        }
      }
      return;
    }
    for (int64_t n = 0; n < width; n += kNarrow) {
      const float* lines[kNarrow];
      for (int64_t i = 0; i < kNarrow; ++i) lines[i] = src + std::min(n + i, count - 1) * step;
      PackLines(lines, K, width, panel + n, ahead);
      if (ahead != nullptr) ahead += K / 4 * 4 * kNarrow;
    }
  }
};

// The first min(n, lanes) bfloat16 at p, the rest 0; nothing beyond them is read.
HWY_INLINE V LoadBf16(const uint16_t* HWY_RESTRICT p, int64_t n) {
  return n >= kLanes ? Whole().Load(p) : Part{static_cast<size_t>(n)}.Load(p);
}

// One vector of c (and aux), at offset `at` and column j, from its finished chains.
template <class Engine, Epilogue kEpilogue>
HWY_INLINE void FinishVector(const MatmulArgs<>& args, V sum, int64_t at, int64_t j, int64_t n) {
  const D d;
  if (args.bias != nullptr) sum = hn::Add(sum, LoadFirst(d, args.bias + j, n));
  if (args.residual != nullptr) sum = hn::Add(sum, LoadFirst(d, args.residual + at, n));
  if constexpr (kEpilogue == Epilogue::kGelu) {
    StoreFirst(Gelu(d, sum), d, args.aux + at, n);
  } else if constexpr (kEpilogue == Epilogue::kGeluBackward) {
    V y, dy;
    GeluWithDerivative(d, LoadFirst(d, args.aux + at, n), y, dy);
    StoreFirst(y, d, args.aux + at, n);
    sum = hn::Mul(sum, dy);
  }
  if constexpr (Engine::kRounds) {
    if constexpr (kEpilogue == Epilogue::kGeluAndSlope) {
      V y, dy;
      GeluWithDerivative(d, sum, y, dy);
      Engine::Store(dy, args.aux_bf16 + at, n);
      sum = y;
    }
    if constexpr (kEpilogue == Epilogue::kTimes) {
      sum = hn::Mul(sum, LoadBf16(args.aux_bf16 + at, n));
    }
    if (args.c_bf16 != nullptr) return Engine::Store(sum, args.c_bf16 + at, n);
  }
  StoreFirst(sum, d, args.c + at, n);
}

template <class Engine, Epilogue kEpilogue>
void FinishRows(const MatmulArgs<>& args, const float* sums, int64_t sums_row, int64_t i0,
                int64_t rows, int64_t j0, int64_t columns) {
  const D d;
  for (int64_t i = 0; i < rows; ++i, sums += sums_row) {
    const int64_t at = (i0 + i) * args.ldc + j0;
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      FinishVector<Engine, kEpilogue>(args, hn::LoadU(d, sums + j), at + j, j0 + j, kLanes);
    }
    if (j == columns) continue;
    FinishVector<Engine, kEpilogue>(args, hn::LoadU(d, sums + j), at + j, j0 + j, columns - j);
  }
}

// Writes c (and aux) from the finished chains `sums` of rows i0.. and columns j0.. .
template <class Engine>
void Finish(const MatmulArgs<>& args, const float* sums, int64_t sums_row, int64_t i0, int64_t rows,
            int64_t j0, int64_t columns) {
  constexpr std::array kBodies = {
      &FinishRows<Engine, Epilogue::kNone>, &FinishRows<Engine, Epilogue::kGelu>,
      &FinishRows<Engine, Epilogue::kGeluBackward>, &FinishRows<Engine, Epilogue::kGeluAndSlope>,
      &FinishRows<Engine, Epilogue::kTimes>};
  kBodies[static_cast<int>(args.epilogue)](args, sums, sums_row, i0, rows, j0, columns);
}

void LoadC(const MatmulArgs<>& args, float* sums, int64_t sums_row, int64_t i0, int64_t rows,
           int64_t j0, int64_t columns) {
  const D d;
  for (int64_t i = 0; i < rows; ++i) {
    const float* c = args.c + (i0 + i) * args.ldc + j0;
    for (int64_t j = 0; j < columns; j += kLanes) {
      hn::StoreU(LoadFirst(d, c + j, columns - j), d, sums + i * sums_row + j);
    }
  }
}

// Below this much work it costs more to call the team than to do it alone.
constexpr double kInlineFlops = 3e5;

template <class Body>
void Run(double flops, int64_t pieces, const Body& body) {
  if (flops >= kInlineFlops) return ParallelFor(pieces, body);
  for (int64_t piece = 0; piece < pieces; ++piece) body(piece);
}

// ---- Products on packed copies.

constexpr int64_t kMaxDepth = 1024;               // words of a block of K
constexpr int64_t kMaxShared = int64_t{1} << 20;  // words packed for all pieces: 4 MiB
constexpr int64_t kMinShared = 256;               // rows or columns of them
constexpr int64_t kMaxOwn = int64_t{1} << 17;     // words that a piece packs: half a second cache
constexpr int64_t kPieces = 12;                   // at least, where there are so many panels

// The part of the product at hand: C [i0.., j0..] over k0.. . The smaller operand is packed for
// all pieces, panels [M / kRows][words][kPanelRows] of A or [N / kWidth][words][kWidth] of B. A
// piece packs its part of the other and multiplies it by all of the first: that copy does not
// leave the second cache.
struct Block {
  int64_t i0, M, j0, N, k0, K;
  int64_t words;                      // of K
  bool first, last;                   // of the blocks of K
  bool shares_b;                      // or A
  float* shared;                      // the panels of all pieces
  int64_t shared_floats, own_floats;  // each thread has some of its own behind the shared ones
  int64_t step;                       // rows of A or columns of B of a piece
};

// What body(a) or body(b) returns, whichever type the operand has.
template <class Engine, class Body>
auto OfA(const MatmulArgs<>& args, const Body& body) {
  if constexpr (Engine::kRounds) {
    if (args.a_bf16 != nullptr) return body(args.a_bf16);
  }
  return body(args.a);
}
template <class Engine, class Body>
auto OfB(const MatmulArgs<>& args, const Body& body) {
  if constexpr (Engine::kRounds) {
    if (args.b_bf16 != nullptr) return body(args.b_bf16);
  }
  return body(args.b);
}

// ---- B packed in few bits, back in words of an engine.

using U32 = hn::RebindToUnsigned<D>;
using I32 = hn::RebindToSigned<D>;

// Byte `index` of each word, less `zero`, times `scale`.
HWY_INLINE V ByteTimes(hn::Vec<U32> words, int index, int mask, int zero, V scale) {
  const auto byte = hn::And(hn::ShiftRightSame(words, 8 * index), hn::Set(U32(), mask));
  const auto q = hn::Sub(hn::BitCast(I32(), byte), hn::Set(I32(), zero));
  return hn::Mul(hn::ConvertTo(D(), q), scale);
}

// to[(k - k0)·width] = b(k, lanes of one vector) for k in [k0, k0 + K). k0 is even, or whole
// blocks.
HWY_INLINE void UnpackLanes(const PackedB& b, int64_t column, int64_t k0, int64_t K, int64_t width,
                            float* HWY_RESTRICT to) {
  const D d;
  const U32 du;
  const int64_t lane = column % kPanelColumns;
  const uint32_t* panel = b.Panel(column / kPanelColumns) + lane;
  if (!b.scaled()) {
    for (int64_t k = 0; k < K; k += 2) {
      const auto words = hn::LoadU(du, panel + (k0 + k) / 2 * kPanelColumns);
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(words)), d, to + k * width);
      if (k + 1 == K) break;
      const auto high = hn::And(words, hn::Set(du, 0xffff0000u));
      hn::StoreU(hn::BitCast(d, high), d, to + (k + 1) * width);
    }
    return;
  }
  const hn::Rebind<hwy::float16_t, D> halves;
  const uint16_t* scales = b.Scales(column / kPanelColumns) + lane;
  const bool bytes = b.type == BlockType::kQ8_0;
  const int64_t block_words = bytes ? 8 : 4;
  for (int64_t k = 0; k < K; k += kBlockNumbers) {
    const int64_t block = (k0 + k) / kBlockNumbers;
    const uint32_t* at = panel + block * block_words * kPanelColumns;
    const auto* half = reinterpret_cast<const hwy::float16_t*>(scales + block * kPanelColumns);
    const V scale = hn::PromoteTo(d, hn::LoadU(halves, half));
    for (int64_t w = 0; w < block_words; ++w, at += kPanelColumns) {
      const auto words = hn::LoadU(du, at);
      for (int i = 0; i < 4; ++i) {
        float* row = to + (k + 4 * w + i) * width;
        if (bytes) {
          hn::StoreU(ByteTimes(words, i, 255, 128, scale), d, row);
          continue;
        }
        hn::StoreU(ByteTimes(words, i, 15, 8, scale), d, row);
        hn::StoreU(ByteTimes(hn::ShiftRight<4>(words), i, 15, 8, scale), d, row + 16 * width);
      }
    }
  }
}

// The panel [words][width] of K numbers from k on, of columns from j on; j and width are whole
// vectors. Columns of no panel are left as they are.
template <class Engine>
void UnpackPanel(const PackedB& b, int64_t j, int64_t k, int64_t K, int64_t width,
                 float* HWY_RESTRICT panel) {
  const D d;
  for (int64_t n = 0; n < width && j + n < b.panels() * kPanelColumns; n += kLanes) {
    const int64_t column = j + n;
    if (Engine::kPackedWords && !b.scaled()) {
      const uint32_t* words = b.Panel(column / kPanelColumns) + column % kPanelColumns +
                              k / Engine::kPerWord * kPanelColumns;
      for (int64_t w = 0; w < DivideUp(K, Engine::kPerWord); ++w) {
        hn::StoreU(hn::BitCast(d, hn::LoadU(U32(), words + w * kPanelColumns)), d,
                   panel + w * width + n);
      }
    } else if (Engine::kInPlace) {
      UnpackLanes(b, column, k, K, width, panel + n);
    } else {
      alignas(64) float numbers[kBlockNumbers * kLanes];
      for (int64_t some = 0; some < K; some += kBlockNumbers) {
        const int64_t count = std::min(kBlockNumbers, K - some);
        UnpackLanes(b, column, k + some, count, kLanes, numbers);
        alignas(64) float words[kBlockNumbers * kLanes];
        Engine::Pack(numbers, 1, kLanes, kLanes, count, kLanes, words);
        float* to = panel + some / Engine::kPerWord * width + n;
        for (int64_t w = 0; w < DivideUp(count, Engine::kPerWord); ++w) {
          hn::StoreU(hn::LoadU(d, words + w * kLanes), d, to + w * width);
        }
      }
    }
  }
}

template <class Engine>
void PackB(const MatmulArgs<>& args, const Block& block, int64_t j, int64_t columns,
           float* HWY_RESTRICT panel) {
  if (args.packed.waits()) {
    const PackedB b = PackColumns(args.packed, block.j0 + j, columns);
    return UnpackPanel<Engine>(b, 0, block.k0, block.K, kWidth, panel);
  }
  if (!args.packed.empty()) {
    return UnpackPanel<Engine>(args.packed, block.j0 + j, block.k0, block.K, kWidth, panel);
  }
  OfB<Engine>(args, [&](const auto* b) {
    b += block.k0 * args.b_row + (block.j0 + j) * args.b_col;
    Engine::Pack(b, args.b_col, args.b_row, columns, block.K, kWidth, panel,
                 args.b_col == block.K ? b + kWidth * block.K : nullptr);
  });
}

template <class Engine>
void PackA(const MatmulArgs<>& args, const Block& block, int64_t i, int64_t rows,
           float* HWY_RESTRICT panel) {
  OfA<Engine>(args, [&](const auto* a) {
    a += (block.i0 + i) * args.a_row + block.k0 * args.a_col;
    Engine::Pack(a, args.a_row, args.a_col, rows, block.K, kPanelRows, panel,
                 args.a_row == block.K ? a + kRows * block.K : nullptr);
  });
}

// C of rows i.. and columns j.. of the block from their panels.
template <class Engine>
void ComputeTile(const MatmulArgs<>& args, const Block& block, int64_t i, int64_t j, const float* a,
                 const float* b, Fetcher* next) {
  alignas(64) float sums[kRows * kWidth];
  const int64_t rows = std::min<int64_t>(kRows, block.M - i);
  const int64_t columns = std::min<int64_t>(kWidth, block.N - j);
  const int64_t i0 = block.i0 + i, j0 = block.j0 + j;
  const bool plain = args.bias == nullptr && args.residual == nullptr &&
                     args.epilogue == Epilogue::kNone && args.c_bf16 == nullptr;
  const int64_t at = i0 * args.ldc + j0;
  TileArgs tile;
  tile.words = block.words;
  tile.a = a;
  tile.b = b;
  tile.b_row = kWidth;
  const bool in_place = columns == kWidth && (plain || !block.last);
  tile.out = in_place ? args.c + at : sums;
  tile.out_row = in_place ? args.ldc : kWidth;
  if (!block.first || args.accumulate) {
    if (!in_place) LoadC(args, sums, kWidth, i0, rows, j0, columns);
    tile.init = tile.out;
    tile.init_row = tile.out_row;
  }
  std::array<Fetcher, 3> behind;
  int fetches = 0;
  tile.fetch[fetches++] = next;
  const auto fetch = [&](const auto* touched) {
    if (touched == nullptr) return;
    Fetcher& fetcher = behind[fetches - 1] = Fetcher(touched + at, args.ldc, 1, rows, columns);
    fetcher.Allow(fetcher.lines());
    tile.fetch[fetches++] = &fetcher;
  };
  fetch(args.c);
  fetch(args.aux);
  fetch(args.residual);
  fetch(args.c_bf16);
  fetch(args.aux_bf16);
  RunTile<Engine, true>(rows, DivideUp(columns, kLanes), tile);
  if (in_place) return;
  MatmulArgs<> finish = args;
  if (!block.last) {
    finish.bias = finish.residual = nullptr;
    finish.epilogue = Epilogue::kNone;
  }
  Finish<Engine>(finish, sums, kWidth, i0, rows, j0, columns);
}

// Rows i.. of C, whose A is packed here, with all columns of the block.
template <class Engine>
void RowPiece(const MatmulArgs<>& args, const Block& block, int64_t i, float* HWY_RESTRICT own) {
  const int64_t end = std::min(i + block.step, block.M), panel = block.words * kPanelRows;
  for (int64_t row = i; row < end; row += kRows) {
    PackA<Engine>(args, block, row, std::min<int64_t>(kRows, block.M - row),
                  own + (row - i) / kRows * panel);
  }
  Fetcher next = OfA<Engine>(args, [&](const auto* a) {
    return Fetcher(a + (block.i0 + end) * args.a_row + block.k0 * args.a_col, args.a_row,
                   args.a_col, std::min(block.step, block.M - end), block.K);
  });
  const int64_t tiles = DivideUp(end - i, kRows) * DivideUp(block.N, kWidth);
  const int64_t lines = DivideUp(next.lines(), tiles);
  for (int64_t j = 0; j < block.N; j += kWidth) {
    for (int64_t row = i; row < end; row += kRows) {
      next.Allow(lines);
      ComputeTile<Engine>(args, block, row, j, own + (row - i) / kRows * panel,
                          block.shared + j * block.words, &next);
    }
  }
}

// Columns j.. of C, whose B is packed here, with all rows of the block.
template <class Engine>
void ColumnPiece(const MatmulArgs<>& args, const Block& block, int64_t j, float* HWY_RESTRICT own) {
  const int64_t end = std::min(j + block.step, block.N);
  for (int64_t column = j; column < end; column += kWidth) {
    PackB<Engine>(args, block, column, std::min<int64_t>(kWidth, block.N - column),
                  own + (column - j) * block.words);
  }
  const int64_t columns = args.packed.empty() ? std::min(block.step, block.N - end) : 0;
  Fetcher next = OfB<Engine>(args, [&](const auto* b) {
    return Fetcher(b + block.k0 * args.b_row + (block.j0 + end) * args.b_col, args.b_row,
                   args.b_col, block.K, columns);
  });
  const int64_t tiles = DivideUp(end - j, kWidth) * DivideUp(block.M, kRows);
  const int64_t lines = DivideUp(next.lines(), tiles);
  for (int64_t i = 0; i < block.M; i += kRows) {
    for (int64_t column = j; column < end; column += kWidth) {
      next.Allow(lines);
      ComputeTile<Engine>(args, block, i, column,
                          block.shared + i / kRows * kPanelRows * block.words,
                          own + (column - j) * block.words, &next);
    }
  }
}

template <class Engine>
void ComputeBlock(const MatmulArgs<>& args, const Block& block) {
  const double flops = 2.0 * block.M * block.N * block.K;
  if (block.shares_b) {
    Run(flops, DivideUp(block.N, kWidth), [&](int64_t strip) {
      const int64_t j = strip * kWidth;
      PackB<Engine>(args, block, j, std::min<int64_t>(kWidth, block.N - j),
                    block.shared + j * block.words);
    });
  } else {
    Run(flops, DivideUp(block.M, kRows), [&](int64_t panel) {
      const int64_t i = panel * kRows;
      PackA<Engine>(args, block, i, std::min<int64_t>(kRows, block.M - i),
                    block.shared + panel * kPanelRows * block.words);
    });
  }
  Run(flops, DivideUp(block.shares_b ? block.M : block.N, block.step), [&](int64_t piece) {
    float* own = block.shared + block.shared_floats + ThreadIndex() * block.own_floats;
    if (block.shares_b) {
      RowPiece<Engine>(args, block, piece * block.step, own);
    } else {
      ColumnPiece<Engine>(args, block, piece * block.step, own);
    }
  });
}

// At least `floats` floats of this thread's own, kept for the next call; null when there are none.
float* Scratch(int64_t floats) {
  thread_local Buffer buffer;
  if (buffer.size() < floats * sizeof(float)) {
    buffer = Buffer();
    buffer = Buffer(floats * sizeof(float));
  }
  return buffer.floats();
}

// False when there is no memory for the panels.
template <class Engine>
bool PackedMatmul(const MatmulArgs<>& args) {
  const auto [M, N, K] = std::array{args.M, args.N, args.K};
  const int64_t words = DivideUp(K, Engine::kPerWord);
  // c holds the unfinished sums between blocks of K, but a residual may be c itself.
  const bool whole = args.residual != nullptr || args.c_bf16 != nullptr;
  const int64_t blocks = whole ? 1 : DivideUp(words, kMaxDepth);
  // Parts of a packed B are whole blocks.
  const int64_t unit = args.packed.empty() ? 1 : kBlockNumbers;
  const int64_t depth = RoundUp(DivideUp(words, blocks), unit);
  Block block;
  block.shares_b = M >= N;
  // Several pieces for each of a few threads, with as many tiles as can be for what each packs.
  const int64_t unit_own = block.shares_b ? kRows : kWidth;
  const int64_t panel = depth * (block.shares_b ? kPanelRows : kWidth);
  const int64_t panels =
      std::min(DivideUp(block.shares_b ? M : N, unit_own) / kPieces, kMaxOwn / panel);
  block.step = unit_own * std::clamp<int64_t>(panels, 1, block.shares_b ? 4 : 2);
  const int64_t most = std::max<int64_t>(kMaxShared / depth, kMinShared);
  const int64_t length = block.shares_b ? N : M, unit_shared = block.shares_b ? kWidth : kRows;
  const int64_t some = std::min(RoundUp(length, unit_shared), most / unit_shared * unit_shared);
  block.own_floats = block.step / unit_own * panel;
  block.shared_floats = depth * (block.shares_b ? some : some / kRows * kPanelRows);
  block.shared = Scratch(block.shared_floats + NumThreads() * block.own_floats);
  if (block.shared == nullptr) return false;
  for (int64_t start = 0; start < length; start += some) {
    block.i0 = block.shares_b ? 0 : start;
    block.j0 = block.shares_b ? start : 0;
    block.M = block.shares_b ? M : std::min(some, M - start);
    block.N = block.shares_b ? std::min(some, N - start) : N;
    for (block.k0 = 0; block.k0 < K; block.k0 += depth * Engine::kPerWord) {
      block.K = std::min(depth * Engine::kPerWord, K - block.k0);
      block.words = DivideUp(block.K, Engine::kPerWord);
      block.first = block.k0 == 0;
      block.last = block.k0 + block.K == K;
      ComputeBlock<Engine>(args, block);
    }
  }
  return true;
}

// ---- Products on A and B where they lie.

constexpr int64_t kDirectSums = 8192;                   // of a piece
constexpr int64_t kDirectRows = 8 < kRows ? 8 : kRows;  // of a tile: more would spill addresses
constexpr int64_t kMaxDirectDepth = 64;                 // words of K
constexpr int64_t kMaxFewDepth = 512;     // the same of packed B and fewer rows than a tile has
constexpr int64_t kMaxDirectHeight = 64;  // rows of a piece, if A is not in place

// Whether a packed B has words of the engine.
template <class Engine>
bool HasWords(const PackedB& b) {
  return Engine::kPackedWords && !b.empty() && !b.scaled();
}

// Whether a tile can read B where it lies, but for columns that are no whole vectors.
template <class Engine>
bool ReadsBInPlace(const MatmulArgs<>& args) {
  return HasWords<Engine>(args.packed) ||
         (Engine::kInPlace && args.packed.empty() && args.b_col == 1);
}

// Whether B lies as it came and is too large to stay in a core's own cache.
bool ReadsBFromMemory(const MatmulArgs<>& args) {
  return args.packed.empty() && args.N * args.K > kMaxOwn;
}

// How much of B is read before its next columns (depth), and the columns of a piece. Where B must
// be packed a piece is one strip of its columns. Otherwise a few rows of A leave the time to
// memory, which wants long runs of few rows; more rows leave it to the tiles.
struct DirectShape {
  int64_t depth, columns;

  DirectShape(const MatmulArgs<>& args, bool in_place) : depth(kMaxDirectDepth), columns(kWidth) {
    if (!in_place) return;
    const bool few = args.M < kDirectRows;
    // A panel of a packed B is a long run by itself.
    if (few && !args.packed.empty()) depth = kMaxFewDepth;
    if (few && ReadsBFromMemory(args)) depth = 16;
    columns = few ? std::clamp<int64_t>(RoundUp(args.N / 8, kWidth), 4 * kWidth, 32 * kWidth)
                  : 8 * kWidth;
    // What is packed for a piece should stay in a core's own cache.
    if (args.packed.waits()) columns = 2 * kWidth;
  }
};

// Points the tile's a at rows i0.. and `words` words of K from k on, in `packed` where they are no
// words as they lie.
template <class Engine>
void PlaceA(const MatmulArgs<>& args, int64_t i0, int64_t rows, int64_t k, int64_t words,
            float* HWY_RESTRICT packed, TileArgs* tile) {
  if constexpr (Engine::kInPlace) {
    tile->a = args.a + i0 * args.a_row + k * args.a_col;
    tile->a_row = args.a_row;
    tile->a_col = args.a_col;
  } else {
    const int64_t K = std::min(words * Engine::kPerWord, args.K - k);
    tile->a = packed;
    tile->a_row = args.a_col == 1 ? words : 1;
    tile->a_col = args.a_col == 1 ? 1 : RoundUp(rows, kLanes);
    OfA<Engine>(args, [&](const auto* a) {
      a += i0 * args.a_row + k * args.a_col;
      if (args.a_col != 1) {
        return Engine::Pack(a, args.a_row, args.a_col, rows, K, tile->a_col, packed);
      }
      for (int64_t i = 0; i < rows; ++i) Engine::Line(a + i * args.a_row, K, packed + i * words);
    });
  }
}

// Points the tile's b at n columns from j on, in `strip` where they must be packed.
template <class Engine>
void PlaceB(const MatmulArgs<>& args, int64_t j, int64_t n, int64_t k, int64_t words,
            float* HWY_RESTRICT strip, TileArgs* tile) {
  if (HasWords<Engine>(args.packed)) {
    tile->b = reinterpret_cast<const float*>(args.packed.Panel(j / kPanelColumns)) +
              k / Engine::kPerWord * kPanelColumns;
    tile->b_row = kPanelColumns;
    return;
  }
  if (!args.packed.empty()) {
    const int64_t K = std::min(words * Engine::kPerWord, args.K - k);
    tile->b = strip;
    tile->b_row = RoundUp(n, kLanes);
    return UnpackPanel<Engine>(args.packed, j, k, K, tile->b_row, strip);
  }
  if (Engine::kInPlace && args.b_col == 1 && n % kLanes == 0) {
    tile->b = args.b + k * args.b_row + j * args.b_col;
    tile->b_row = args.b_row;
    return;
  }
  tile->b = strip;
  tile->b_row = RoundUp(n, kLanes);
  OfB<Engine>(args, [&](const auto* b) {
    // The next strip; dense rows of B follow each other.
    const auto* ahead = args.b_col == args.K ? b + (j + kWidth) * args.K + k * kWidth : nullptr;
    Engine::Pack(b + k * args.b_row + j * args.b_col, args.b_col, args.b_row, n,
                 std::min(words * Engine::kPerWord, args.K - k), tile->b_row, strip, ahead);
  });
}

// Asks for the rows of B that follow those of a tile: it reads them in short runs, each on a page
// of its own, and few rows of A do not give the processor time to guess them.
HWY_INLINE void FetchRows(const MatmulArgs<>& args, int64_t k, int64_t end, int64_t j, int64_t n) {
  for (; k < std::min(end, args.K); ++k) {
    const float* row = args.b + k * args.b_row + j;
    for (int64_t i = 0; i < n; i += kCacheLine) __builtin_prefetch(row + i, 0, 2);
  }
}

// The product of some columns alone, for a B that waits to be packed.
MatmulArgs<> WithPackedColumns(const MatmulArgs<>& args, int64_t j0, int64_t columns) {
  MatmulArgs<> some = args;
  some.N = columns;
  some.packed = PackColumns(args.packed, j0, columns);
  some.c += j0;
  if (some.bias != nullptr) some.bias += j0;
  if (some.residual != nullptr) some.residual += j0;
  if (some.aux != nullptr) some.aux += j0;
  return some;
}

template <class Engine>
void DirectPiece(const MatmulArgs<>& args, int64_t depth, int64_t i0, int64_t rows, int64_t j0,
                 int64_t columns) {
  if (args.packed.waits()) {
    const MatmulArgs<> some = WithPackedColumns(args, j0, columns);
    return DirectPiece<Engine>(some, depth, i0, rows, 0, columns);
  }
  alignas(64) float sums[kDirectSums];
  alignas(64) float strip[kMaxDirectDepth * kWidth];
  alignas(64) float packed[Engine::kInPlace ? 1 : kMaxDirectDepth * kMaxDirectHeight];
  TileArgs tile;
  tile.out_row = tile.init_row = RoundUp(columns, kLanes);
  if (args.accumulate) LoadC(args, sums, tile.out_row, i0, rows, j0, columns);
  const int64_t step = HasWords<Engine>(args.packed) ? kPanelColumns : kWidth;
  const bool in_place = Engine::kInPlace && ReadsBInPlace<Engine>(args);
  const bool fetches = in_place && args.M < kDirectRows && ReadsBFromMemory(args);
  const int64_t widest = in_place && args.M == 1 ? kRowVectors * kLanes : step;
  bool first = !args.accumulate;
  int64_t k = 0;
  do {
    tile.words = std::min(depth, DivideUp(args.K - k, Engine::kPerWord));
    PlaceA<Engine>(args, i0, rows, k, tile.words, packed, &tile);
    const float* a = tile.a;
    for (int64_t j = 0, n; j < columns; j += n) {
      const int64_t whole = (columns - j) / kLanes * kLanes;
      n = whole > step ? std::min(whole, widest) : std::min(step, columns - j);
      PlaceB<Engine>(args, j0 + j, n, k, tile.words, strip, &tile);
      if (fetches) FetchRows(args, k + tile.words, k + 2 * tile.words, j0 + j, n);
      for (int64_t i = 0; i < rows; i += kDirectRows) {
        tile.a = a + i * tile.a_row;
        tile.out = sums + i * tile.out_row + j;
        tile.init = first ? nullptr : tile.out;
        const int64_t vectors = DivideUp(n, kLanes);
        if (vectors > kVectors) {
          RunRowTile<Engine>(vectors, tile, std::make_index_sequence<kRowVectors>());
        } else {
          RunTile<Engine, false>(std::min(kDirectRows, rows - i), vectors, tile);
        }
      }
    }
    first = false;
    k += tile.words * Engine::kPerWord;
  } while (k < args.K);
  Finish<Engine>(args, sums, tile.out_row, i0, rows, j0, columns);
}

template <class Engine>
void DirectMatmul(const MatmulArgs<>& args) {
  const DirectShape shape(args, ReadsBInPlace<Engine>(args));
  const int64_t width = std::min(args.N, shape.columns);
  int64_t height =
      std::min(args.M, kDirectSums / RoundUp(width, kLanes) / kDirectRows * kDirectRows);
  if (!Engine::kInPlace) height = std::min(height, kMaxDirectHeight);
  const int64_t across = DivideUp(args.N, width), down = DivideUp(args.M, height);
  Run(2.0 * args.M * args.N * args.K, across * down, [&](int64_t piece) {
    const int64_t i = piece / across * height, j = piece % across * width;
    DirectPiece<Engine>(args, shape.depth, i, std::min(height, args.M - i), j,
                        std::min(width, args.N - j));
  });
}

// Multiply-adds on registers alone, as many chains of them as a tile has: what no product exceeds.
template <class Engine>
double MultiplyAdds(int64_t rounds) {
  const D d;
  constexpr int kChains = HWY_TARGET == HWY_AVX3 ? 28 : 12;
  // Different numbers, or the compiler would see one chain.
  float numbers[kChains * kLanes];
  for (int i = 0; i < kChains * kLanes; ++i) numbers[i] = static_cast<float>(i);
  V sum[kChains];
#pragma GCC unroll 28
  for (int i = 0; i < kChains; ++i) sum[i] = hn::LoadU(d, numbers + i * kLanes);
  const V a = hn::Set(d, 1e-9f), b = hn::Set(d, static_cast<float>(rounds));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 28
    for (int i = 0; i < kChains; ++i) sum[i] = Engine::MulAdd(a, b, sum[i]);
  }
#pragma GCC unroll 28
  for (int i = 0; i < kChains; ++i) hn::StoreU(sum[i], d, numbers + i * kLanes);
  asm volatile("" : : "r"(numbers) : "memory");  // as if somebody read them
  return 2.0 * Engine::kPerWord * kLanes * kChains * static_cast<double>(rounds);
}

template <class Engine>
void Multiply(const MatmulArgs<>& args) {
  if (args.M <= 0 || args.N <= 0) return;
  // Packing pays from some rows on, and never for a B that stays in the first cache anyway.
  if (args.M > 4 * kRows && args.N * args.K > 4096 && PackedMatmul<Engine>(args)) return;
  DirectMatmul<Engine>(args);
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_MATMUL_INL_H_
