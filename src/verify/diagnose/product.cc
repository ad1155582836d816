#include "verify/diagnose/product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "verify/diagnose/product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heed::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<double>;
using Vec = hn::Vec<Tag>;

HWY_INLINE Vec Load(const double* p) { return hn::LoadU(Tag(), p); }
HWY_INLINE Vec Load(const float* p) {
  return hn::PromoteTo(Tag(), hn::LoadU(hn::Rebind<float, Tag>(), p));
}

// What the registers hold beside the vectors on their way.
constexpr int64_t kCols = 4;
constexpr int64_t kRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// c [rows, cols] += a [rows, K] · bᵀ of b [cols, K], all sums in registers.
template <int64_t rows, int64_t cols, class B>
HWY_INLINE void AddTile(const double* a, const B* b, int64_t K, double* c, int64_t stride) {
  const Tag d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  Vec sums[rows][cols];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < cols; ++n) sums[r][n] = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + N <= K; k += N) {
    Vec columns[cols];
    for (int64_t n = 0; n < cols; ++n) columns[n] = Load(b + n * K + k);
    for (int64_t r = 0; r < rows; ++r) {
      const Vec row = hn::LoadU(d, a + r * K + k);
      for (int64_t n = 0; n < cols; ++n) sums[r][n] = hn::MulAdd(row, columns[n], sums[r][n]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < cols; ++n) {
      double sum = hn::GetLane(hn::SumOfLanes(d, sums[r][n]));
      for (int64_t rest = k; rest < K; ++rest) {
        sum += a[r * K + rest] * static_cast<double>(b[n * K + rest]);
      }
      c[r * stride + n] += sum;
    }
  }
}

// All rows of c behind the same columns of b, which stay in the cache.
template <int64_t cols, class B>
void AddColumns(const double* a, const B* b, int64_t M, int64_t K, double* c, int64_t stride) {
  int64_t m = 0;
  for (; m + kRows <= M; m += kRows) {
    AddTile<kRows, cols>(a + m * K, b, K, c + m * stride, stride);
  }
  if (M - m >= 2) {
    AddTile<2, cols>(a + m * K, b, K, c + m * stride, stride);
    m += 2;
  }
  if (m < M) AddTile<1, cols>(a + m * K, b, K, c + m * stride, stride);
}

template <class B>
void AddAll(const double* a, const B* b, int64_t M, int64_t N, int64_t K, double* c) {
  int64_t n = 0;
  for (; n + kCols <= N; n += kCols) AddColumns<kCols>(a, b + n * K, M, K, c + n, N);
  for (; n < N; ++n) AddColumns<1>(a, b + n * K, M, K, c + n, N);
}

void AddDoubles(const double* a, const double* b, int64_t M, int64_t N, int64_t K, double* c) {
  AddAll(a, b, M, N, K, c);
}

void AddFloats(const double* a, const float* b, int64_t M, int64_t N, int64_t K, double* c) {
  AddAll(a, b, M, N, K, c);
}

}  // namespace
}  // namespace heed::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed {

HWY_EXPORT(AddDoubles);
HWY_EXPORT(AddFloats);

void AddProduct(std::span<const double> a, std::span<const double> b, int64_t M, int64_t N,
                int64_t K, std::span<double> c) {
  HWY_DYNAMIC_DISPATCH(AddDoubles)(a.data(), b.data(), M, N, K, c.data());
}

void AddProduct(std::span<const double> a, std::span<const float> b, int64_t M, int64_t N,
                int64_t K, std::span<double> c) {
  HWY_DYNAMIC_DISPATCH(AddFloats)(a.data(), b.data(), M, N, K, c.data());
}

}  // namespace heed
#endif
