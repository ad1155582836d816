#include "nn/norm.h"

#include <algorithm>
#include <functional>

namespace heed {

Norm Norm::Add(ParameterSet* parameters, const std::string& name, int64_t C, bool rms, double eps,
               bool bias) {
  Norm norm{C, rms, eps};
  norm.gain = parameters->Add(name + ".weight", "C", {C}, Init::kOnes);
  if (bias && !rms) norm.bias = parameters->Add(name + ".bias", "C", {C}, Init::kZeros);
  return norm;
}

void Norm::PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T,
                     State* state) const {
  if (gain == nullptr) return;
  // Both norms of a block are needed at once.
  const std::string key = name.substr(name.rfind('.') + 1);
  if (!rms) {
    plan->Add(&state->mean, name + ".mean", key + ".mean", "B T", {B, T}, Lifetime::kSaved);
  }
  plan->Add(&state->rstd, name + ".rstd", key + ".rstd", "B T", {B, T}, Lifetime::kSaved);
}

NormArgs<> Norm::Args(const float* x, int64_t rows, const State& state) const {
  NormArgs<> args{rows, C, eps, rms, x, gain->values};
  args.bias = bias == nullptr ? nullptr : bias->values;
  args.mean = state.mean;
  args.rstd = state.rstd;
  return args;
}

void Norm::Forward(const Pass& pass, const float* x, int64_t rows, const State& state,
                   float* y) const {
  if (gain == nullptr) {
    std::copy_n(x, rows * C, y);
    return;
  }
  NormArgs<> args = Args(x, rows, state);
  args.y = y;
  pass.kernels->norm_forward(args);
}

void Norm::Recompute(const Pass& pass, const float* x, int64_t rows, const State& state,
                     float* y) const {
  NormArgs<> args = Args(x, rows, state);
  args.y = y;
  pass.kernels->norm_apply(args);
}

void Norm::Backward(const Pass& pass, const float* x, int64_t rows, const State& state,
                    const float* dy, float* dx) const {
  if (gain == nullptr) {
    std::transform(dx, dx + rows * C, dy, dx, std::plus<>());
    return;
  }
  NormArgs<> args = Args(x, rows, state);
  args.dy = dy;
  args.dx = dx;
  args.dgain = gain->grad;
  args.dbias = bias == nullptr ? nullptr : bias->grad;
  args.accumulate = pass.accumulate;
  pass.kernels->norm_backward(args);
}

}  // namespace heed
