#include "nn/mlp.h"

#include "nn/residual.h"

namespace heed {

void Mlp::PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                    Scratch* scratch) const {
  // Words of a factor's row are pairs.
  if (plan->training() && plan->rounds() && !swiglu && C % 2 == 0 && inner % 2 == 0) {
    plan->Add(&state->h_bf16, name + ".h", "mlp.act", "B T inner", {B, T, inner}, Lifetime::kSaved);
    plan->Add(&state->slope_bf16, name + ".slope", "mlp.slope", "B T inner", {B, T, inner},
              Lifetime::kSaved);
    plan->Add(&scratch->dfc_bf16, name + ".dfc", "mlp.h", "B T inner", {B, T, inner},
              Lifetime::kScratch);
    return;
  }
  plan->Add(&state->fc, name + ".fc", "mlp.fc", "B T inner", {B, T, inner}, Lifetime::kSaved);
  if (swiglu) {
    plan->Add(&state->gate, name + ".gate", "mlp.gate", "B T inner", {B, T, inner},
              Lifetime::kSaved);
  }
  plan->Add(&scratch->h, name + ".h", "mlp.h", "B T inner", {B, T, inner}, Lifetime::kScratch);
  if (plan->training()) {
    // The gradient of a GELU's output does not need that output, SwiGLU's does.
    plan->Add(&scratch->dh, name + ".dh", swiglu ? "mlp.dh" : "mlp.h", "B T inner", {B, T, inner},
              Lifetime::kScratch);
  }
}

void Mlp::Forward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                  const float* residual, float* y) const {
  const int64_t rows = pass.rows();
  if (swiglu) {
    gate.Forward(pass, x, rows, {state.gate, inner});
    fc.Forward(pass, x, rows, {state.fc, inner});
    pass.kernels->swiglu_forward({rows * inner, state.gate, state.fc, scratch.h});
  } else if (state.h_bf16 != nullptr) {
    Linear::Output output{nullptr, inner, nullptr, Epilogue::kGeluAndSlope};
    output.y_bf16 = state.h_bf16;
    output.aux_bf16 = state.slope_bf16;
    fc.Forward(pass, x, rows, output);
    return ProjectToResidual(pass, proj, dropout_site, state.h_bf16, residual, y);
  } else {
    fc.Forward(pass, x, rows, {state.fc, inner, nullptr, Epilogue::kGelu, scratch.h});
  }
  ProjectToResidual(pass, proj, dropout_site, scratch.h, residual, y);
}

void Mlp::BackwardActivation(const Pass& pass, const State& state, const Scratch& scratch,
                             const float* dy) const {
  const int64_t rows = pass.rows();
  if (swiglu) {
    proj.BackwardInput(pass, dy, C, rows, {scratch.dh, inner});
    pass.kernels->swiglu_backward({rows * inner, state.gate, state.fc, scratch.h, scratch.dh});
    proj.BackwardWeight(pass, scratch.h, dy, C, rows);
  } else if (state.h_bf16 != nullptr) {
    Linear::Output output{nullptr, inner, nullptr, Epilogue::kTimes};
    output.y_bf16 = scratch.dfc_bf16;
    output.aux_bf16 = state.slope_bf16;
    proj.BackwardInput(pass, dy, C, rows, output);
    proj.BackwardWeight(pass, state.h_bf16, dy, C, rows);
  } else {
    proj.BackwardInput(pass, dy, C, rows,
                       {scratch.dh, inner, nullptr, Epilogue::kGeluBackward, state.fc});
    proj.BackwardWeight(pass, state.fc, dy, C, rows);
  }
}

void Mlp::BackwardInput(const Pass& pass, const float* x, const State& state,
                        const Scratch& scratch, float* dx) const {
  const int64_t rows = pass.rows();
  const Factor dfc = swiglu                    ? Factor(state.fc)
                     : state.h_bf16 != nullptr ? Factor(scratch.dfc_bf16)
                                               : Factor(scratch.dh);
  fc.BackwardInput(pass, dfc, inner, rows, {dx, C});
  fc.BackwardWeight(pass, x, dfc, inner, rows);
  if (!swiglu) return;
  gate.BackwardInput(pass, state.gate, inner, rows, {dx, C}, /*accumulate=*/true);
  gate.BackwardWeight(pass, x, state.gate, inner, rows);
}

}  // namespace heed
