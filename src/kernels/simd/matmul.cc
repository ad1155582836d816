#include "kernels/simd/matmul.h"

#include <algorithm>
#include <span>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/matmul.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/simd/row_product-inl.h"

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
  if (row && args.packed.empty() && !args.accumulate) return DenseRowProduct<FloatRow>(args);
#endif
  Multiply<FloatEngine>(args);
}

void ReorderTarget(const MatmulArgs<>& args, const float* from, std::span<const int64_t> order) {
  const int64_t width = RoundUp(args.N, kLanes);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t i = 0; i < args.M; ++i, from += args.N) {
    for (int64_t j = 0; j < args.N; ++j) row[j] = from[order[j]];
    Finish<FloatEngine>(args, row.data(), width, i, 1, 0, args.N);
  }
}

double MultiplyAddsTarget(int64_t rounds) { return MultiplyAdds<FloatEngine>(rounds); }

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(MatmulTarget);
HWY_EXPORT(ReorderTarget);
HWY_EXPORT(MultiplyAddsTarget);

namespace {

// The product in the order of the rows that B has in its file, then its columns in theirs.
void ReorderedMatmul(const MatmulArgs<>& args) {
  const PackedB& b = args.packed;
  std::vector<float> sums(static_cast<size_t>(args.M * args.N));
  MatmulArgs<> product{args.M, args.N, args.K, args.a, args.a_row, args.a_col};
  product.packed = {b.type, b.K, b.N, nullptr, b.rows};
  product.c = sums.data();
  product.ldc = args.N;
  product.arithmetic = args.arithmetic;
  Matmul(product);
  HWY_DYNAMIC_DISPATCH(ReorderTarget)(args, sums.data(), b.order);
}

}  // namespace

void Matmul(const MatmulArgs<>& args) {
  // Where rows are read as they stand, others would be other memory.
  const bool floats = !args.packed.empty() && args.packed.type == BlockType::kF32;
  const bool words = args.packed.waits() && !args.packed.scaled();
  const bool reads_rows = floats || (words && args.arithmetic == Arithmetic::kBf16);
  if (reads_rows && !args.packed.order.empty()) return ReorderedMatmul(args);
  if (floats) {
    MatmulArgs<> product = args;
    product.packed = {};
    product.b = reinterpret_cast<const float*>(args.packed.rows);
    product.b_row = 1;
    product.b_col = args.K;
    return Matmul(product);
  }
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
