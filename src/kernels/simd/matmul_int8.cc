// The product with a B in blocks of few bits (tensor/packed.h), of which the rows of A are rounded
// to blocks of 32 bytes with a scale, as in q8_0 but that the scale is a float: sums over a block
// are whole numbers, exact, and are scaled and added up in float32 in the order of the blocks.
#include "kernels/simd/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/matmul_int8.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/simd/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;

constexpr int kDotRows = HWY_TARGET == HWY_AVX3 ? 6 : 2;

// ---- Sums of four products of an unsigned byte of B and a signed one of A in each lane. `Number`
// is how a byte of A is kept, by Keep, in which the order of every four may change.

#if HWY_TARGET == HWY_AVX3
struct VnniDot {
  using Number = int8_t;

  static bool Supported() {
    static const bool supported = __builtin_cpu_supports("avx512vnni");
    return supported;
  }
  // |x| <= 127 here, which spares what Highway does about overflow.
  static HWY_INLINE VI Nearest(V x) { return VI{_mm512_cvtps_epi32(x.raw)}; }
  static HWY_INLINE int32_t Sum(VI x) { return _mm512_reduce_add_epi32(x.raw); }
  static HWY_INLINE void Keep(VI x, Number* q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(x.raw));
  }
  // Into a register: as operands of the products, two for each, the loads would take longer.
  static HWY_INLINE VI Load(const Number* a) {
    int32_t word;
    std::memcpy(&word, a, sizeof(word));
    return hn::Set(I32(), word);
  }
  static HWY_INLINE VI Dot(VU b, VI a, VI sum) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(b.raw), "v"(a.raw));
    return sum;
  }
};
#endif

struct AnyDot {
  static HWY_INLINE VI Nearest(V x) { return hn::NearestInt(x); }
  static HWY_INLINE int32_t Sum(VI x) { return hn::GetLane(hn::SumOfLanes(I32(), x)); }
};

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
// By pairs of 16 bits: bytes 0 and 2, then 1 and 3.
struct PairDot : AnyDot {
  using Number = int16_t;

  static HWY_INLINE void Keep(VI x, Number* q) {
    alignas(64) int32_t whole[kLanes];
    hn::Store(x, I32(), whole);
    for (int64_t i = 0; i < kLanes; i += 4) {
      for (const int64_t place : {0, 2, 1, 3}) *q++ = static_cast<Number>(whole[i + place]);
    }
  }
  static HWY_INLINE const Number* Load(const Number* a) { return a; }
  static HWY_INLINE VI Dot(VU b, const Number* a, VI sum) {
    const I32 d;
    const hn::Repartition<int16_t, I32> d16;
    int32_t pairs[2];
    std::memcpy(pairs, a, sizeof(pairs));
    VI rest = hn::Zero(d);
    const auto even = hn::BitCast(d16, hn::And(b, hn::Set(U32(), 0x00ff00ff)));
    const auto odd = hn::BitCast(d16, hn::And(hn::ShiftRight<8>(b), hn::Set(U32(), 0x00ff00ff)));
    sum = hn::ReorderWidenMulAccumulate(d, even, hn::BitCast(d16, hn::Set(d, pairs[0])), sum, rest);
    return hn::ReorderWidenMulAccumulate(d, odd, hn::BitCast(d16, hn::Set(d, pairs[1])), sum, rest);
  }
};
#else
struct PairDot : AnyDot {
  using Number = int8_t;

  static HWY_INLINE void Keep(VI x, Number* q) {
    const hn::Rebind<Number, I32> narrow;
    hn::StoreU(hn::DemoteTo(narrow, x), narrow, q);
  }
  static HWY_INLINE const Number* Load(const Number* a) { return a; }
  static HWY_INLINE VI Dot(VU b, const Number* a, VI sum) {
    const I32 d;
    for (int i = 0; i < 4; ++i, b = hn::ShiftRight<8>(b)) {
      const VI byte = hn::BitCast(d, hn::And(b, hn::Set(U32(), 0xff)));
      sum = hn::Add(sum, hn::Mul(byte, hn::Set(d, a[i])));
    }
    return sum;
  }
};
#endif

// The rows of A in whole numbers: a(i, k) = d[i, k / 32] · q[i, k].
template <class Number>
struct WholeRows {
  int64_t K = 0, blocks = 0;
  Number* q = nullptr;        // [M, K], every four in Dot's order
  float* d = nullptr;         // [M, blocks]
  int32_t* middle = nullptr;  // [M, blocks]: minus what B's zero adds to the sum over a block
};

// Blocks of numbers below this count as 0; its inverse times 127 is finite.
constexpr float kSmallest = 0x1p-100f;

// One block of 32 numbers. With one that is not finite all its products become NaN.
template <class DotEngine>
void WholeBlock(const float* x, int32_t zero, typename DotEngine::Number* q, float* scale,
                int32_t* middle) {
  const D d;
  const I32 di;
  VI most = hn::Zero(di);
  for (int64_t i = 0; i < kBlockNumbers; i += kLanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  }
  const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, most));
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  const bool finite = bits < 0x7f800000;
  const bool zeros = !finite || largest < kSmallest;
  *scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zeros ? 0.0f : largest / 127;
  const V inverse = hn::Set(d, zeros ? 0.0f : 127 / largest);
  VI sums = hn::Zero(di);
  for (int64_t i = 0; i < kBlockNumbers; i += kLanes) {
    const VI nearest = DotEngine::Nearest(hn::Mul(hn::LoadU(d, x + i), inverse));
    const VI rounded = zeros ? hn::Zero(di) : nearest;
    sums = hn::Add(sums, rounded);
    DotEngine::Keep(rounded, q + i);
  }
  *middle = -zero * DotEngine::Sum(sums);
}

template <class DotEngine, BlockType kType, int kTileRows, int kVec>
void WholeTile(const PackedB& b, int64_t j, const WholeRows<typename DotEngine::Number>& a,
               int64_t i, float* HWY_RESTRICT out) {
  constexpr bool kBytes = kType == BlockType::kQ8_0;
  const D d;
  const I32 di;
  const U32 du;
  const hn::Rebind<hwy::float16_t, D> halves;
  const uint32_t* words[kVec];
  const uint16_t* scales[kVec];
  for (int v = 0; v < kVec; ++v) {
    const int64_t column = j + v * kLanes;
    words[v] = b.Panel(column / kPanelColumns) + column % kPanelColumns;
    scales[v] = b.Scales(column / kPanelColumns) + column % kPanelColumns;
  }
  // A single row leaves the time to memory: the next panels are asked for meanwhile.
  const int64_t ahead = kVec * b.words() * kPanelColumns;
  const int64_t scales_ahead = kVec * a.blocks * kPanelColumns;
  const auto* q = a.q + i * a.K;
  V sum[kTileRows][kVec];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVec; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t block = 0; block < a.blocks; ++block, q += kBlockNumbers) {
    VI whole[kTileRows][kVec];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVec; ++v) {
        whole[r][v] = hn::Set(di, a.middle[(i + r) * a.blocks + block]);
      }
    }
#pragma GCC unroll 16
    for (int g = 0; g < (kBytes ? 8 : 4); ++g) {
      VU x[kVec], y[kVec];
#pragma GCC unroll 16
      for (int v = 0; v < kVec; ++v) {
        if (kTileRows == 1) __builtin_prefetch(words[v] + ahead + g * kPanelColumns, 0, 2);
        x[v] = hn::LoadU(du, words[v] + g * kPanelColumns);
        if (kBytes) continue;
        y[v] = hn::And(hn::ShiftRight<4>(x[v]), hn::Set(du, 0x0f0f0f0f));
        x[v] = hn::And(x[v], hn::Set(du, 0x0f0f0f0f));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        const auto* at = q + r * a.K + g * 4;
        const auto low = DotEngine::Load(at), high = DotEngine::Load(kBytes ? at : at + 16);
#pragma GCC unroll 16
        for (int v = 0; v < kVec; ++v) {
          whole[r][v] = DotEngine::Dot(x[v], low, whole[r][v]);
          if (!kBytes) whole[r][v] = DotEngine::Dot(y[v], high, whole[r][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVec; ++v) {
      const auto* half = reinterpret_cast<const hwy::float16_t*>(scales[v]);
      const V scale = hn::PromoteTo(d, hn::LoadU(halves, half));
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        const V scaled = hn::Mul(hn::ConvertTo(d, whole[r][v]), scale);
        sum[r][v] = hn::MulAdd(scaled, hn::Set(d, a.d[(i + r) * a.blocks + block]), sum[r][v]);
      }
      if (kTileRows == 1) __builtin_prefetch(scales[v] + scales_ahead, 0, 2);
      words[v] += (kBytes ? 8 : 4) * kPanelColumns;
      scales[v] += kPanelColumns;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVec; ++v) hn::StoreU(sum[r][v], d, out + r * kWidth + v * kLanes);
  }
}

template <class DotEngine, BlockType kType, size_t... kIndex>
constexpr auto WholeTiles(std::index_sequence<kIndex...>) {
  return std::array{&WholeTile<DotEngine, kType, kIndex / kVectors + 1, kIndex % kVectors + 1>...};
}

template <class DotEngine, BlockType kType>
void WholeProduct(const MatmulArgs<>& args, const WholeRows<typename DotEngine::Number>& a) {
  static constexpr auto kTiles =
      WholeTiles<DotEngine, kType>(std::make_index_sequence<kDotRows * kVectors>());
  // Some ten thousand bytes of B, so that a piece takes a microsecond at least.
  constexpr int64_t kPanels = 2;
  const int64_t columns = kPanels * kPanelColumns * std::clamp<int64_t>(args.N / 1024, 1, 8);
  Run(2.0 * args.M * args.N * args.K, DivideUp(args.N, columns), [&](int64_t piece) {
    alignas(64) float sums[kDotRows * kWidth];
    const int64_t begin = piece * columns, end = std::min(args.N, begin + columns);
    const bool waits = args.packed.waits();
    const PackedB b = waits ? PackColumns(args.packed, begin, end - begin) : args.packed;
    for (int64_t j = begin; j < end; j += kWidth) {
      const int64_t n = std::min<int64_t>(kWidth, end - j), vectors = DivideUp(n, kLanes);
      for (int64_t i = 0; i < args.M; i += kDotRows) {
        const int64_t rows = std::min<int64_t>(kDotRows, args.M - i);
        for (const float* touched : {static_cast<const float*>(args.c), args.residual}) {
          if (touched == nullptr) continue;
          Fetcher fetcher(touched + i * args.ldc + j, args.ldc, 1, rows, n);
          fetcher.Allow(fetcher.lines());
          fetcher.Part(1);
        }
        kTiles[(rows - 1) * kVectors + vectors - 1](b, waits ? j - begin : j, a, i, sums);
        Finish<FloatEngine>(args, sums, kWidth, i, rows, j, n);
      }
    }
  });
}

template <class DotEngine>
void MultiplyWhole(const MatmulArgs<>& args) {
  using Number = typename DotEngine::Number;
  WholeRows<Number> a;
  a.K = args.K;
  a.blocks = args.K / kBlockNumbers;
  const int64_t blocks = args.M * a.blocks;
  // One allocation: scales, middles, then numbers.
  const int64_t numbers = DivideUp(args.M * args.K * sizeof(Number), sizeof(float));
  float* scratch = Scratch(2 * blocks + numbers);
  if (scratch == nullptr) return Multiply<FloatEngine>(args);
  a.d = scratch;
  a.middle = reinterpret_cast<int32_t*>(scratch + blocks);
  a.q = reinterpret_cast<Number*>(scratch + 2 * blocks);
  const bool bytes = args.packed.type == BlockType::kQ8_0;
  Run(8.0 * args.M * args.K, args.M, [&](int64_t i) {
    const WholeRows<Number> rows = a;
    const float* x = args.a + i * args.a_row;
    const int32_t zero = bytes ? 128 : 8;
    for (int64_t at = i * rows.blocks; at < (i + 1) * rows.blocks; ++at, x += kBlockNumbers) {
      WholeBlock<DotEngine>(x, zero, rows.q + at * kBlockNumbers, rows.d + at, rows.middle + at);
    }
  });
  if (bytes) return WholeProduct<DotEngine, BlockType::kQ8_0>(args, a);
  WholeProduct<DotEngine, BlockType::kQ4_0>(args, a);
}

}  // namespace

void MatmulInt8Target(const MatmulArgs<>& args) {
  if (args.M <= 0 || args.N <= 0) return;
#if HWY_TARGET == HWY_AVX3
  if (VnniDot::Supported()) return MultiplyWhole<VnniDot>(args);
#endif
  MultiplyWhole<PairDot>(args);
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(MatmulInt8Target);

void MatmulInt8(const MatmulArgs<>& args) { HWY_DYNAMIC_DISPATCH(MatmulInt8Target)(args); }

}  // namespace heed::simd
#endif  // HWY_ONCE
