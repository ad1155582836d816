// The end of the model: final norm, logits, and in training the cross-entropy. Logits are made in
// chunks of rows, so that no [B, T, V] array is ever held for the loss.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/norm.h"
#include "nn/pass.h"
#include "tensor/parameters.h"
#include "tensor/plan.h"

namespace heed {

struct Head {
  int64_t C = 0, V = 0;
  Norm norm;
  Parameter* weight = nullptr;  // [V, C]: its own, or the token embedding's

  struct State {
    Norm::State norm;
    float* normed = nullptr;     // [B, T, C]; backward, what becomes its gradient
    float* logits = nullptr;     // [chunk, V]
    std::vector<double> losses;  // [chunk]
  };

  void PlanState(Plan* plan, int64_t B, int64_t T, State* state) const;

  // The product that makes logits, but for its rows and the result.
  MatmulArgs<> Product() const;

  // logits [rows, V] from x [rows, C]; rows is at most the planned B · T.
  void Logits(const Pass& pass, const float* x, int64_t rows, const State& state,
              float* logits) const;
  // The sum of -log p(target) over targets [B, T] that are not -1, in nats.
  double Loss(const Pass& pass, const float* x, const int32_t* targets, State& state) const;
  // The same, with all gradients of `scale` times it: the weight's and the norm's, and dx
  // [B, T, C], which is set.
  double LossAndBackward(const Pass& pass, const float* x, const int32_t* targets, float scale,
                         State& state, float* dx) const;

 private:
  MatmulArgs<> LogitsArgs(const Pass& pass, const float* normed, int64_t rows, float* logits) const;
};

}  // namespace heed
