#include "verify/diagnose/product.h"

#include <algorithm>

namespace heed {
namespace {

// Columns of b that lie together while all rows of a pass: a cache line.
constexpr int64_t kWidth = 8;

// c [kRows, width] += a [kRows, K] · panel [K, kWidth], all sums in registers.
template <int kRows>
void AddTile(const double* a, const double* panel, int64_t K, int64_t width, double* c,
             int64_t stride) {
  double sums[kRows][kWidth] = {};
  for (int64_t k = 0; k < K; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const double factor = a[r * K + k];
      for (int64_t n = 0; n < kWidth; ++n) sums[r][n] += factor * panel[k * kWidth + n];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int64_t n = 0; n < width; ++n) c[r * stride + n] += sums[r][n];
  }
}

}  // namespace

void AddProduct(const std::vector<double>& a, const std::vector<double>& b, bool b_turned,
                int64_t M, int64_t N, int64_t K, std::vector<double>* c) {
  std::vector<double> panel(K * kWidth);
  for (int64_t first = 0; first < N; first += kWidth) {
    const int64_t width = std::min(kWidth, N - first);
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t n = 0; n < width; ++n) {
        panel[k * kWidth + n] = b_turned ? b[(first + n) * K + k] : b[k * N + first + n];
      }
    }
    int64_t m = 0;
    for (; m + 2 <= M; m += 2) {
      AddTile<2>(&a[m * K], panel.data(), K, width, &(*c)[m * N + first], N);
    }
    for (; m < M; ++m) AddTile<1>(&a[m * K], panel.data(), K, width, &(*c)[m * N + first], N);
  }
}

}  // namespace heed
