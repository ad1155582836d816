// One transformer block, norms before the sublayers (GPT-2, Llama):
//   x1 = x + attention(norm_1(x)),  x2 = x1 + mlp(norm_2(x1)).
#pragma once

#include <cstdint>
#include <string>

#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace heed {

struct Block {
  Norm norm_1;
  Attention attention;
  Norm norm_2;
  Mlp mlp;

  struct State {
    Norm::State norm_1, norm_2;
    Attention::State attention;
    Mlp::State mlp;
    float* middle = nullptr;  // [B, T, C]: x1
    float* output = nullptr;  // [B, T, C]: x2
  };
  // One set serves all blocks.
  struct Scratch {
    Attention::Scratch attention;
    Mlp::Scratch mlp;
    float* normed = nullptr;   // [B, T, C]; inference
    float* dnormed = nullptr;  // [B, T, C]
  };

  void PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                 Scratch* scratch) const;

  // state.output from x [B, T, C], from pass.first_output on; cache may be null.
  void Forward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
               const KeyValueCache* cache) const;
  // dx [B, T, C] holds the gradient of the output and becomes that of the input x.
  void Backward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                float* dx) const;
};

}  // namespace heed
