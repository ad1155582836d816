// One row of A and a B whose columns are dense rows of memory: bound by reading B. Templated on how
// words are multiplied. Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_ROW_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_ROW_PRODUCT_INL_H_
#undef HEED_KERNELS_SIMD_ROW_PRODUCT_INL_H_
#else
#define HEED_KERNELS_SIMD_ROW_PRODUCT_INL_H_
#endif

#include "kernels/simd/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
using NarrowVec = hn::Vec<Narrow>;

// Words that are floats.
struct FloatRow {
  static constexpr int64_t kNumbers = 1;  // of K in a word

  static HWY_INLINE NarrowVec NarrowMulAdd(NarrowVec a, NarrowVec b, NarrowVec sum) {
    return hn::MulAdd(a, b, sum);
  }
};

constexpr int kRowGroups = 4;  // of kNarrow columns: as many chains as hide a multiply-add's time
constexpr int kRowColumns = kRowGroups * kNarrow;

// Columns j .. of the row of sums; those behind B's last are copies of it. The columns behind them
// are asked for meanwhile in several streams, for the pages of a file come from memory slowly one
// by one.
template <class Row>
void DenseRowTile(const MatmulArgs<>& args, int64_t j, float* HWY_RESTRICT out) {
  const Narrow d;
  const float* lines[kRowColumns];
  for (int64_t i = 0; i < kRowColumns; ++i) {
    lines[i] = args.b + std::min(j + i, args.N - 1) * args.b_col;
  }
  const float* ahead = args.b + (j + kRowColumns) * args.b_col;
  const int64_t stream = kRowGroups * args.b_col;
  hn::Vec<Narrow> sum[kRowGroups], rows[4];
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) sum[g] = hn::Zero(d);
  const auto four = [&](int g, int64_t at) HWY_ATTR {
    Transpose4(lines + g * kNarrow, at, rows);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      sum[g] = Row::NarrowMulAdd(hn::Set(d, args.a[at + q]), rows[q], sum[g]);
  };
  const bool from_memory = args.N * args.K * Row::kNumbers > kMaxOwn;
  int64_t k = 0;
  // A cache line of each column at once: a power of two apart, few of them stay in the first cache.
  for (; from_memory && k + kCacheLine <= args.K; k += kCacheLine) {
#pragma GCC unroll 4
    for (int g = 0; g < kRowGroups; ++g) {
#pragma GCC unroll 8
      for (int s = 0; s < kNarrow; ++s) {
        __builtin_prefetch(ahead + s * stream + kRowGroups * k + g * kCacheLine, 0, 2);
      }
#pragma GCC unroll 4
      for (int q = 0; q < kCacheLine; q += 4) four(g, k + q);
    }
  }
  for (; k + 4 <= args.K; k += 4) {
#pragma GCC unroll 4
    for (int g = 0; g < kRowGroups; ++g) four(g, k);
  }
  for (; k < args.K; ++k) {
    for (int g = 0; g < kRowGroups; ++g) {
      float column[kNarrow];
      for (int i = 0; i < kNarrow; ++i) column[i] = lines[g * kNarrow + i][k];
      sum[g] = Row::NarrowMulAdd(hn::Set(d, args.a[k]), hn::LoadU(d, column), sum[g]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) hn::StoreU(sum[g], d, out + g * kNarrow);
}

template <class Row>
void DenseRowProduct(const MatmulArgs<>& args) {
  const int64_t columns = kRowColumns * std::clamp<int64_t>(args.N / 1024, 1, 8);
  Run(2.0 * args.N * args.K * Row::kNumbers, DivideUp(args.N, columns), [&](int64_t piece) {
    alignas(64) float sums[kRowColumns + kLanes];
    const int64_t end = std::min(args.N, (piece + 1) * columns);
    for (int64_t j = piece * columns; j < end; j += kRowColumns) {
      DenseRowTile<Row>(args, j, sums);
      Finish<FloatEngine>(args, sums, 0, 0, 1, j, std::min<int64_t>(kRowColumns, end - j));
    }
  });
}
#endif

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_ROW_PRODUCT_INL_H_
