#include "verify/diagnose/attention_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Exponentials of what lies below the maximum of n numbers `stride` apart.
void SubtractMaximum(double* values, int64_t n, int64_t stride) {
  double maximum = -kInfinity;
  for (int64_t i = 0; i < n; ++i) maximum = std::max(maximum, values[i * stride]);
  for (int64_t i = 0; i < n; ++i) values[i * stride] = std::exp(values[i * stride] - maximum);
}

void DivideBySum(double* values, int64_t n, int64_t stride) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i * stride];
  for (int64_t i = 0; i < n; ++i) values[i * stride] /= sum;
}

// Tiles weigh by their own maximum; `carried`: earlier sums are scaled down when the running
// maximum grows.
void TiledSoftmax(double* row, int64_t n, int64_t tile, bool carried) {
  double running = -kInfinity, sum = 0;
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t last = std::min(first + tile, n);
    const double own = *std::max_element(row + first, row + last);
    if (own == -kInfinity) {
      std::fill(row + first, row + last, 0);
      continue;
    }
    const double now = std::max(running, own);
    const double shrink = carried ? std::exp(running - now) : 1;
    for (int64_t j = 0; j < first; ++j) row[j] *= shrink;
    sum *= shrink;
    for (int64_t j = first; j < last; ++j) sum += row[j] = std::exp(row[j] - own);
    running = now;
  }
  for (int64_t j = 0; j < n; ++j) row[j] /= sum;
}

}  // namespace

void Softmax(double* values, int64_t n, int64_t stride, double one) {
  double maximum = -kInfinity;
  for (int64_t i = 0; i < n; ++i) maximum = std::max(maximum, values[i * stride]);
  double sum = one;
  for (int64_t i = 0; i < n; ++i) {
    double& value = values[i * stride];
    value = maximum == -kInfinity ? kNan : std::exp(value - maximum);
    sum += value;
  }
  for (int64_t i = 0; i < n; ++i) values[i * stride] /= sum;
}

void ApplySoftmax(const SoftmaxChoice& choice, const ScoreShape& shape,
                  const std::function<void(int64_t, int64_t, int64_t)>& settle,
                  std::vector<double>* scores) {
  const int64_t B = shape.B, H = shape.H, R = shape.R, S = shape.S;
  const int64_t square = R * S;
  double* values = scores->data();
  const auto along = [&](int64_t n, int64_t stride, int64_t count,
                         const std::function<int64_t(int64_t)>& first) {
    for (int64_t r = 0; r < count; ++r) {
      Softmax(&values[first(r)], n, stride);
      settle(first(r), n, stride);
    }
  };
  switch (choice.kind) {
    case SoftmaxKind::kKeys:
      along(S, 1, B * H * R, [&](int64_t r) { return r * S; });
      break;
    case SoftmaxKind::kQueries:
      along(R, S, B * H * S, [&](int64_t r) { return r / S * square + r % S; });
      break;
    case SoftmaxKind::kHeads:
      along(H, square, B * square, [&](int64_t r) { return r / square * H * square + r % square; });
      break;
    case SoftmaxKind::kBatch:
      along(B, H * square, H * square, [](int64_t r) { return r; });
      break;
    case SoftmaxKind::kTileMaximum:
    case SoftmaxKind::kTileMaximumUncarried:
      for (int64_t r = 0; r < B * H * R; ++r) {
        TiledSoftmax(&values[r * S], S, choice.tile, choice.kind == SoftmaxKind::kTileMaximum);
      }
      break;
    case SoftmaxKind::kPlusOneUnshifted:
      for (int64_t r = 0; r < B * H * R; ++r) Softmax(&values[r * S], S, 1, 1);
      break;
    case SoftmaxKind::kMaximumOfKeys:
    case SoftmaxKind::kMaximumOfQueries: {
      const bool keys = choice.kind == SoftmaxKind::kMaximumOfKeys;
      for (int64_t map = 0; map < B * H; ++map) {
        double* first = &values[map * square];
        for (int64_t r = 0; r < (keys ? R : S); ++r) {
          SubtractMaximum(first + r * (keys ? S : 1), keys ? S : R, keys ? 1 : S);
        }
        for (int64_t r = 0; r < (keys ? S : R); ++r) {
          DivideBySum(first + r * (keys ? 1 : S), keys ? R : S, keys ? S : 1);
        }
      }
      break;
    }
    case SoftmaxKind::kOverflow32:
      for (int64_t r = 0; r < B * H * R; ++r) {
        double* row = &values[r * S];
        float sum = 0;
        for (int64_t j = 0; j < S; ++j) sum += std::exp(static_cast<float>(row[j]));
        for (int64_t j = 0; j < S; ++j) row[j] = std::exp(static_cast<float>(row[j])) / sum;
      }
      break;
  }
}

}  // namespace heed
