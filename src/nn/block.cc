#include "nn/block.h"

#include "nn/residual.h"

namespace heed {

void Block::PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                      Scratch* scratch) const {
  const int64_t C = attention.C;
  norm_1.PlanState(plan, name + ".ln_1", B, T, &state->norm_1);
  attention.PlanState(plan, name + ".attn", B, T, &state->attention, &scratch->attention);
  norm_2.PlanState(plan, name + ".ln_2", B, T, &state->norm_2);
  mlp.PlanState(plan, name + ".mlp", B, T, &state->mlp, &scratch->mlp);
  plan->Add(&state->middle, name + ".middle", "residual", "B T C", {B, T, C}, Lifetime::kSaved);
  plan->Add(&state->output, name + ".output", "residual", "B T C", {B, T, C}, Lifetime::kInput);
  if (!plan->training()) {
    plan->Add(&scratch->normed, name + ".normed", "normed", "B T C", {B, T, C}, Lifetime::kScratch);
    return;
  }
  plan->Add(&scratch->dnormed, name + ".dnormed", "dnormed", "B T C", {B, T, C},
            Lifetime::kScratch);
}

void Block::Forward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                    const KeyValueCache* cache) const {
  // In training the output is free until the MLP's end.
  float* normed = scratch.normed != nullptr ? scratch.normed : state.output;
  norm_1.Forward(pass, x, pass.rows(), state.norm_1, normed);
  const Pass outputs = pass.Outputs();
  const int64_t first = pass.first_output * attention.C;
  float* middle = state.middle + first;
  attention.Forward(pass, normed, state.attention, cache, x + first, middle);
  norm_2.Forward(outputs, middle, outputs.rows(), state.norm_2, normed);
  mlp.Forward(outputs, normed, state.mlp, scratch.mlp, middle, state.output + first);
}

void Block::Backward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                     float* dx) const {
  const int64_t C = attention.C;
  // The output is free, for the next block is done; so is middle behind norm_2.
  const float* dy = DropoutGradient(pass, mlp.dropout_site, dx, C, state.output);
  mlp.BackwardActivation(pass, state.mlp, scratch.mlp, dy);
  norm_2.Recompute(pass, state.middle, pass.rows(), state.norm_2, state.output);
  mlp.BackwardInput(pass, state.output, state.mlp, scratch.mlp, scratch.dnormed);
  norm_2.Backward(pass, state.middle, pass.rows(), state.norm_2, scratch.dnormed, dx);

  dy = DropoutGradient(pass, attention.dropout_site + 1, dx, C, state.output);
  norm_1.Recompute(pass, x, pass.rows(), state.norm_1, state.middle);
  attention.Backward(pass, state.middle, state.attention, scratch.attention, dy, scratch.dnormed);
  norm_1.Backward(pass, x, pass.rows(), state.norm_1, scratch.dnormed, dx);
}

}  // namespace heed
