#include "optim/muon.h"

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

// Newton-Schulz: X <- aX + (bA + cA²)X with A = XXᵀ maps each singular value s to as + bs³ + cs⁵.
// Jordan's coefficients bring any s in (0.002, 1] to 0.7 .. 1.2 within five steps.
constexpr int kSteps = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

// x [rows, cols] becomes orthogonalised; y is as large, a and p [small, small] are scratch.
void Orthogonalise(const Kernels& kernels, int64_t rows, int64_t cols, float* x, float* y, float* a,
                   float* p) {
  const int64_t n = rows * cols, small = std::min(rows, cols), large = std::max(rows, cols);
  const auto scale = static_cast<float>(1 / (std::sqrt(kernels.sum_squares(x, n)) + 1e-12));
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
  // X is x, or its transpose where that is the wide one.
  const bool wide = rows <= cols;
  const int64_t row = wide ? cols : 1, col = wide ? 1 : cols;
  for (int step = 0; step < kSteps; ++step) {
    kernels.matmul({small, small, large, x, row, col, x, col, row, a, small});
    for (int64_t i = 0; i < small * small; ++i) p[i] = kB / kC * a[i];
    MatmulArgs<> square{small, small, small, a, small, 1, a, small, 1, p, small};
    square.accumulate = true;
    kernels.matmul(square);
    kernels.matmul(wide ? MatmulArgs<>{rows, cols, small, p, small, 1, x, cols, 1, y, cols}
                        : MatmulArgs<>{rows, cols, small, x, cols, 1, p, small, 1, y, cols});
    for (int64_t i = 0; i < n; ++i) x[i] = kA * x[i] + kC * y[i];
  }
}

}  // namespace

void MuonStep(const Kernels& kernels, const MuonArgs& args, std::vector<float>* scratch) {
  const int64_t n = args.rows * args.cols, small = std::min(args.rows, args.cols);
  scratch->resize(static_cast<size_t>(2 * n + 2 * small * small));
  float* x = scratch->data();
  float* y = x + n;
  float* a = y + n;
  const auto momentum = static_cast<float>(args.momentum);
  const auto scale = static_cast<float>(args.grad_scale);
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* grad = args.grad + r * args.row;
    float* m = args.m + r * args.row;
    for (int64_t c = 0; c < args.cols; ++c) {
      const float g = scale * grad[c];
      m[c] = momentum * m[c] + g;
      x[r * args.cols + c] = g + momentum * m[c];
    }
  }
  Orthogonalise(kernels, args.rows, args.cols, x, y, a, a + small * small);
  const auto keep = static_cast<float>(1 - args.learning_rate * args.weight_decay);
  const auto step = static_cast<float>(
      args.learning_rate * 0.2 * std::sqrt(static_cast<double>(std::max(args.rows, args.cols))));
  for (int64_t r = 0; r < args.rows; ++r) {
    float* param = args.param + r * args.row;
    for (int64_t c = 0; c < args.cols; ++c) {
      param[c] = keep * param[c] - step * x[r * args.cols + c];
    }
  }
}

}  // namespace heed
