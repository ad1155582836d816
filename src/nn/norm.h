// Layer norm or RMS norm over the model width, with what its backward needs. Without a gain it is
// no norm: y = x.
#pragma once

#include <string>

#include "nn/pass.h"
#include "tensor/parameters.h"
#include "tensor/plan.h"

namespace heed {

struct Norm {
  int64_t C = 0;
  bool rms = false;
  double eps = 1e-5;
  Parameter* gain = nullptr;
  Parameter* bias = nullptr;  // or null

  struct State {
    float* mean = nullptr;  // [B, T]
    float* rstd = nullptr;  // [B, T]
  };

  static Norm Add(ParameterSet* parameters, const std::string& name, int64_t C, bool rms,
                  double eps, bool bias);
  void PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state) const;

  // y [rows, C] from x [rows, C].
  void Forward(const Pass& pass, const float* x, int64_t rows, const State& state, float* y) const;
  // y once more from x and the kept statistics.
  void Recompute(const Pass& pass, const float* x, int64_t rows, const State& state,
                 float* y) const;
  // Adds to dx [rows, C] what flows back through dy [rows, C].
  void Backward(const Pass& pass, const float* x, int64_t rows, const State& state, const float* dy,
                float* dx) const;

 private:
  NormArgs<> Args(const float* x, int64_t rows, const State& state) const;
};

}  // namespace heed
