// The feed-forward half of a block: GELU in its tanh form (GPT-2) or SwiGLU (Llama).
#pragma once

#include <cstdint>
#include <string>

#include "nn/linear.h"
#include "nn/pass.h"
#include "tensor/plan.h"

namespace heed {

struct Mlp {
  int64_t C = 0, inner = 0;
  bool swiglu = false;
  uint32_t dropout_site = 0;
  Linear fc;    // gelu: C -> inner; swiglu: the "up" projection
  Linear gate;  // swiglu only
  Linear proj;  // inner -> C

  struct State {
    float* fc = nullptr;    // [B, T, inner]: before the activation
    float* gate = nullptr;  // [B, T, inner]; swiglu only
    // A GELU of a plan that rounds keeps its output and its derivative in place of its input.
    uint16_t* h_bf16 = nullptr;      // [B, T, inner]
    uint16_t* slope_bf16 = nullptr;  // [B, T, inner]
  };
  struct Scratch {
    float* h = nullptr;            // [B, T, inner]: the activation's output
    float* dh = nullptr;           // [B, T, inner]
    uint16_t* dfc_bf16 = nullptr;  // [B, T, inner]: the gradient before the activation
  };

  void PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                 Scratch* scratch) const;

  // y [B, T, C] = residual + dropout(mlp(x)); y may be the residual itself.
  void Forward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
               const float* residual, float* y) const;
  // First half: from dy [B, T, C] behind the dropout, the gradients of proj and of what lies
  // before the activation. Of `state`, fc and gate then hold no pre-activations any more.
  void BackwardActivation(const Pass& pass, const State& state, const Scratch& scratch,
                          const float* dy) const;
  // Second half: the gradients of fc and gate, and dx [B, T, C], from the input x.
  void BackwardInput(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                     float* dx) const;
};

}  // namespace heed
