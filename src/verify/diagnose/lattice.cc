#include "verify/diagnose/lattice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace heed {
namespace {

using Numbers = std::vector<double>;

// In several sums, which need not wait for each other.
double Dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kSums = 8;
  std::array<double, kSums> sums{};
  const size_t even = a.size() / kSums * kSums;
  for (size_t i = 0; i < even; i += kSums) {
    for (size_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  double rest = 0;
  for (size_t i = even; i < a.size(); ++i) rest += a[i] * b[i];
  return std::accumulate(sums.begin(), sums.end(), rest);
}

void Subtract(double factor, std::span<const double> from, Numbers* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] -= factor * from[i];
}

class Lattice {
 public:
  explicit Lattice(std::vector<Numbers> basis)
      : basis_(std::move(basis)), turned_(basis_.size()), square_(basis_.size()) {}

  // Until every vector is nearly orthogonal to those before it and not much shorter than they.
  // False after far more steps than that takes, should rounding turn it in circles.
  bool Reduce() {
    constexpr double kLovasz = 0.99;
    const size_t n = basis_.size();
    const size_t most = 100 * (n + 1) * (n + 1);
    size_t k = 1;
    Orthogonalise(0);
    for (size_t steps = 0; k < n && steps < most; ++steps) {
      const double along = Shorten(k);
      if (square_[k] >= (kLovasz - along * along) * square_[k - 1]) {
        ++k;
        continue;
      }
      std::swap(basis_[k], basis_[k - 1]);
      Orthogonalise(k - 1);
      k = std::max<size_t>(k - 1, 1);
    }
    return k == n;
  }

  // What is left of `target` behind a near vector of the lattice.
  Numbers LeftOf(Numbers target) const {
    for (size_t k = basis_.size(); k-- > 0;) {
      Subtract(std::round(Dot(target, turned_[k]) / square_[k]), basis_[k], &target);
    }
    return target;
  }

 private:
  // Turned vector k: its part orthogonal to all before.
  void Orthogonalise(size_t k) {
    turned_[k] = basis_[k];
    for (size_t j = 0; j < k; ++j) {
      Subtract(Dot(turned_[k], turned_[j]) / square_[j], turned_[j], &turned_[k]);
    }
    square_[k] = Dot(turned_[k], turned_[k]);
  }

  // Takes whole multiples of the vectors before k out of it, and returns its share of the last one.
  double Shorten(size_t k) {
    for (size_t j = k; j-- > 0;) {
      const double share = Dot(basis_[k], turned_[j]) / square_[j];
      if (std::abs(share) > 0.51) Subtract(std::round(share), basis_[j], &basis_[k]);
    }
    Orthogonalise(k);
    return Dot(basis_[k], turned_[k - 1]) / square_[k - 1];
  }

  std::vector<Numbers> basis_, turned_;
  Numbers square_;  // of the turned ones
};

}  // namespace

bool IsDecidable(int64_t n, int64_t C, double tolerance) {
  constexpr double kSpareBits = 20;
  const double bits = -std::log2(std::max(tolerance, 1e-12)) - 1;
  return static_cast<double>(n) + kSpareBits < static_cast<double>(C - 1) * bits;
}

std::optional<std::vector<bool>> ColumnsAlong(std::span<const double> columns,
                                              std::span<const double> target, double tolerance) {
  const size_t C = target.size(), n = columns.size() / C;
  const double size = std::sqrt(Dot(target, target));
  if (n == 0 || size == 0 || !std::isfinite(size + Dot(columns, columns))) return std::nullopt;
  // Behind the marks, twice as large as 1 and so between -1 and 1 about the target's: what stands
  // across the target in units of noise, and what stands along it, loosely, so that nothing at all
  // is no answer.
  constexpr double kMark = 2, kAlong = 10, kMiddle = 0.6;
  const double unit = tolerance * size / std::sqrt(static_cast<double>(C));
  std::vector<Numbers> basis;
  for (size_t i = 0; i < n; ++i) {
    const std::span<const double> column = columns.subspan(i * C, C);
    const double along = Dot(column, target) / (size * size);
    Numbers row(n + C + 1);
    row[i] = kMark;
    for (size_t c = 0; c < C; ++c) row[n + c] = (column[c] - along * target[c]) / unit;
    row[n + C] = kAlong * along;
    basis.push_back(std::move(row));
  }
  Lattice lattice(std::move(basis));
  if (!lattice.Reduce()) return std::nullopt;
  Numbers goal(n + C + 1, kMark / 2);
  std::fill(goal.begin() + static_cast<std::ptrdiff_t>(n), goal.end(), 0);
  goal[n + C] = kAlong * kMiddle;
  const Numbers left = lattice.LeftOf(std::move(goal));
  std::vector<bool> marks(n);
  double across = 0;
  bool any = false;
  for (size_t i = 0; i < n; ++i) {
    if (std::abs(std::abs(left[i]) - kMark / 2) > 0.1) return std::nullopt;
    marks[i] = left[i] < 0;
    any |= marks[i];
  }
  for (size_t c = 0; c < C; ++c) across += left[n + c] * left[n + c];
  if (!any || across > 4 * static_cast<double>(C)) return std::nullopt;
  return marks;
}

}  // namespace heed
