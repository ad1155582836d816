#include "nn/head.h"

#include <algorithm>

namespace heed {
namespace {

// Rows of logits held at once: all of them, but at most this many bytes and at least 64 rows.
constexpr int64_t kChunkBytes = int64_t{64} << 20;

}  // namespace

void Head::PlanState(Plan* plan, int64_t B, int64_t T, State* state) const {
  const int64_t rows = B * T;
  const int64_t chunk = std::min(rows, std::max<int64_t>(64, kChunkBytes / (V * 4)));
  state->losses.resize(chunk);
  norm.PlanState(plan, "ln_f", B, T, &state->norm);
  plan->Add(&state->normed, "ln_f.output", "dnormed", "B T C", {B, T, C}, Lifetime::kForward);
  plan->Add(&state->logits, "logits", "logits", "rows V", {chunk, V}, Lifetime::kScratch);
}

MatmulArgs<> Head::Product() const {
  MatmulArgs<> args{0, V, C};
  args.b = weight->values;
  args.b_row = 1;
  args.b_col = C;
  return args;
}

MatmulArgs<> Head::LogitsArgs(const Pass& pass, const float* normed, int64_t rows,
                              float* logits) const {
  MatmulArgs<> args = Product();
  args.M = rows;
  args.a = normed;
  args.a_row = C;
  args.c = logits;
  args.ldc = V;
  args.arithmetic = pass.arithmetic;
  args.packed = weight->packed;
  return args;
}

void Head::Logits(const Pass& pass, const float* x, int64_t rows, const State& state,
                  float* logits) const {
  norm.Forward(pass, x, rows, state.norm, state.normed);
  pass.kernels->matmul(LogitsArgs(pass, state.normed, rows, logits));
}

double Head::Loss(const Pass& pass, const float* x, const int32_t* targets, State& state) const {
  norm.Forward(pass, x, pass.rows(), state.norm, state.normed);
  const auto chunk = static_cast<int64_t>(state.losses.size());
  double sum = 0;
  for (int64_t first = 0; first < pass.rows(); first += chunk) {
    const int64_t rows = std::min(chunk, pass.rows() - first);
    pass.kernels->matmul(LogitsArgs(pass, state.normed + first * C, rows, state.logits));
    pass.kernels->cross_entropy({rows, V, state.logits, targets + first, state.losses.data()});
    for (int64_t r = 0; r < rows; ++r) sum += state.losses[r];
  }
  return sum;
}

double Head::LossAndBackward(const Pass& pass, const float* x, const int32_t* targets, float scale,
                             State& state, float* dx) const {
  norm.Forward(pass, x, pass.rows(), state.norm, state.normed);
  const auto chunk = static_cast<int64_t>(state.losses.size());
  double sum = 0;
  for (int64_t first = 0; first < pass.rows(); first += chunk) {
    const int64_t rows = std::min(chunk, pass.rows() - first);
    float* normed = state.normed + first * C;
    pass.kernels->matmul(LogitsArgs(pass, normed, rows, state.logits));
    pass.kernels->cross_entropy(
        {rows, V, state.logits, targets + first, state.losses.data(), /*backward=*/true, scale});
    for (int64_t r = 0; r < rows; ++r) sum += state.losses[r];
    // logits now hold their own gradient, and the rows of normed take theirs after their last use.
    MatmulArgs<> weights{V, C, rows, state.logits, 1, V, normed, C, 1, weight->grad, C};
    weights.accumulate = pass.accumulate || first > 0;
    weights.arithmetic = pass.arithmetic;
    pass.kernels->matmul(weights);
    MatmulArgs<> input{rows, C, V, state.logits, V, 1, weight->values, C, 1, normed, C};
    input.arithmetic = pass.arithmetic;
    pass.kernels->matmul(input);
  }
  std::fill_n(dx, pass.rows() * C, 0.0f);
  norm.Backward(pass, x, pass.rows(), state.norm, state.normed, dx);
  return sum;
}

}  // namespace heed
