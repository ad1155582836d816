#include "kernels/simd/matmul.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/matmul.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/simd/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

namespace {

// ---- Narrow products: all of B in a strip in the first cache, and sums in registers alone.

constexpr int64_t kNarrowDepth = 64;
constexpr int64_t kNarrowNumbers = 4096;  // of C in a piece: the first cache keeps them

// Rows i .. i + kTileRows - 1 of C before an epilogue; strip [K, kVec vectors].
template <class Tag, int kTileRows, int kVec>
HWY_INLINE void NarrowTile(const MatmulArgs<>& args, const float* HWY_RESTRICT strip, int64_t i) {
  const Tag d;
  constexpr int64_t kVector = hn::MaxLanes(Tag());
  const int64_t a_row = args.a_row, a_col = args.a_col, at = i * args.ldc;
  const float* a = args.a + i * a_row;
  hn::Vec<Tag> sum[kTileRows][kVec];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVec; ++j) {
      const float* c = args.c + at + r * args.ldc + j * kVector;
      sum[r][j] = args.accumulate ? LoadFirst(d, c, args.N - j * kVector) : hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < args.K; ++k, a += a_col, strip += kVec * kVector) {
    hn::Vec<Tag> b[kVec];
#pragma GCC unroll 16
    for (int j = 0; j < kVec; ++j) b[j] = hn::LoadU(d, strip + j * kVector);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const auto x = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 16
      for (int j = 0; j < kVec; ++j) sum[r][j] = hn::MulAdd(x, b[j], sum[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kVec; ++j) {
    const int64_t n = args.N - j * kVector;
    if (args.bias != nullptr) {
      const auto bias = LoadFirst(d, args.bias + j * kVector, n);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) sum[r][j] = hn::Add(sum[r][j], bias);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t to = at + r * args.ldc + j * kVector;
      if (args.residual != nullptr) {
        sum[r][j] = hn::Add(sum[r][j], LoadFirst(d, args.residual + to, n));
      }
      StoreFirst(sum[r][j], d, args.c + to, n);
    }
  }
}

// The epilogue on n finished numbers of C, `at` from its start.
void NarrowEpilogue(const MatmulArgs<>& args, int64_t at, int64_t n) {
  const D d;
  float* c = args.c + at;
  float* aux = args.aux + at;
  for (int64_t j = 0; j < n; j += kLanes) {
    if (args.epilogue == Epilogue::kGelu) {
      StoreFirst(Gelu(d, LoadFirst(d, c + j, n - j)), d, aux + j, n - j);
    } else {
      V y, dy;
      GeluWithDerivative(d, LoadFirst(d, aux + j, n - j), y, dy);
      StoreFirst(y, d, aux + j, n - j);
      StoreFirst(hn::Mul(LoadFirst(d, c + j, n - j), dy), d, c + j, n - j);
    }
  }
}

template <class Tag, int kVec>
void NarrowMatmul(const MatmulArgs<>& args) {
  constexpr int64_t kColumns = kVec * hn::MaxLanes(Tag());
  constexpr int kTileRows = kRows / kVec < 8 ? kRows / kVec : 8;
  alignas(64) float strip[kNarrowDepth * (kWidth > kColumns ? kWidth : kColumns)];
  FloatEngine::Pack(args.b, args.b_col, args.b_row, args.N, args.K, kColumns, strip, nullptr);
  const int64_t height = std::max<int64_t>(1, kNarrowNumbers / args.N);
  Run(2.0 * args.M * args.N * args.K, (args.M + height - 1) / height, [&](int64_t piece) HWY_ATTR {
    const int64_t begin = piece * height, end = std::min(args.M, begin + height);
    int64_t i = begin;
    for (; i + kTileRows <= end; i += kTileRows) NarrowTile<Tag, kTileRows, kVec>(args, strip, i);
    for (; i < end; ++i) NarrowTile<Tag, 1, kVec>(args, strip, i);
    if (args.epilogue == Epilogue::kNone) return;
    if (args.ldc == args.N) return NarrowEpilogue(args, begin * args.N, (end - begin) * args.N);
    for (i = begin; i < end; ++i) NarrowEpilogue(args, i * args.ldc, args.N);
  });
}

// ---- One row of A and a B whose columns are dense: bound by reading B.

#if HWY_TARGET != HWY_SCALAR
constexpr int kRowGroups = 4;  // of kNarrow columns: as many chains as hide a multiply-add's time
constexpr int kRowColumns = kRowGroups * kNarrow;

// Columns j .. of the row of sums; those behind B's last are copies of it. The columns behind them
// are asked for meanwhile in several streams, for the pages of a file come from memory slowly one
// by one.
void RowTile(const MatmulArgs<>& args, int64_t j, float* HWY_RESTRICT out) {
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
    for (int q = 0; q < 4; ++q) sum[g] = hn::MulAdd(hn::Set(d, args.a[at + q]), rows[q], sum[g]);
  };
  int64_t k = 0;
  // A cache line of each column at once: a power of two apart, few of them stay in the first cache.
  for (; ReadsBFromMemory(args) && k + kCacheLine <= args.K; k += kCacheLine) {
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
      sum[g] = hn::MulAdd(hn::Set(d, args.a[k]), hn::LoadU(d, column), sum[g]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) hn::StoreU(sum[g], d, out + g * kNarrow);
}

void RowProduct(const MatmulArgs<>& args) {
  const int64_t columns = kRowColumns * std::clamp<int64_t>(args.N / 1024, 1, 8);
  Run(2.0 * args.N * args.K, DivideUp(args.N, columns), [&](int64_t piece) {
    alignas(64) float sums[kRowColumns + kLanes];
    const int64_t end = std::min(args.N, (piece + 1) * columns);
    for (int64_t j = piece * columns; j < end; j += kRowColumns) {
      RowTile(args, j, sums);
      Finish<FloatEngine>(args, sums, 0, 0, 1, j, std::min<int64_t>(kRowColumns, end - j));
    }
  });
}
#endif

}  // namespace

void MatmulTarget(const MatmulArgs<>& args) {
  if (args.M <= 0 || args.N <= 0) return;
  if (args.N <= kWidth && args.K <= kNarrowDepth && args.packed.empty()) {
    if (args.N <= kNarrow) return NarrowMatmul<Narrow, 1>(args);
    if (args.N <= kLanes) return NarrowMatmul<D, 1>(args);
    return NarrowMatmul<D, kVectors>(args);
  }
#if HWY_TARGET != HWY_SCALAR
  const bool row = args.M == 1 && args.a_col == 1 && args.b_row == 1 && args.b_col > 1;
  if (row && args.packed.empty() && !args.accumulate) return RowProduct(args);
#endif
  Multiply<FloatEngine>(args);
}

double MultiplyAddsTarget(int64_t rounds) { return MultiplyAdds<FloatEngine>(rounds); }

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(MatmulTarget);
HWY_EXPORT(MultiplyAddsTarget);

void Matmul(const MatmulArgs<>& args) {
  if (args.arithmetic == Arithmetic::kBf16) return MatmulBf16(args);
  const bool blocks = !args.packed.empty() && args.packed.scaled();
  if (args.arithmetic == Arithmetic::kInt8 && blocks) return MatmulInt8(args);
  HWY_DYNAMIC_DISPATCH(MatmulTarget)(args);
}

double MultiplyAdds(Arithmetic arithmetic, int64_t rounds) {
  if (arithmetic == Arithmetic::kBf16) return MultiplyAddsBf16(rounds);
  return HWY_DYNAMIC_DISPATCH(MultiplyAddsTarget)(rounds);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
