// y = x W + b, with W stored as [in, out] (GPT-2's files) or [out, in] (torch.nn.Linear).
#pragma once

#include <cstdint>
#include <string>

#include "nn/pass.h"
#include "tensor/parameters.h"

namespace heed {

// The left side of a product, or the gradient of its result: numbers, or what plans hold in
// bfloat16 (see MatmulArgs::a_bf16).
struct Factor {
  const float* floats = nullptr;
  const uint16_t* bf16 = nullptr;

  Factor(const float* values) : floats(values) {}   // NOLINT(google-explicit-constructor)
  Factor(const uint16_t* values) : bf16(values) {}  // NOLINT(google-explicit-constructor)
};

struct Linear {
  int64_t in = 0, out = 0;
  bool out_in = false;
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  // [out], or null

  static Linear Add(ParameterSet* parameters, const std::string& name, int64_t in, int64_t out,
                    bool out_in, bool bias, Init init = Init::kNormal);

  // The product x W but for x, its rows and the result.
  MatmulArgs<> Product() const;

  // y [rows, out] with row stride ldy, from x [rows, in]. See MatmulArgs for residual (row stride
  // ldy), epilogue, aux and bfloat16.
  struct Output {
    float* y = nullptr;
    int64_t ldy = 0;
    const float* residual = nullptr;
    Epilogue epilogue = Epilogue::kNone;
    float* aux = nullptr;
    uint16_t* y_bf16 = nullptr;
    uint16_t* aux_bf16 = nullptr;
  };
  void Forward(const Pass& pass, Factor x, int64_t rows, const Output& output) const;

  // dx [rows, in] = (or, with accumulate, +=) dy Wᵀ. Behind a GELU, an epilogue makes it the
  // gradient of the pre-activations.
  void BackwardInput(const Pass& pass, Factor dy, int64_t lddy, int64_t rows, const Output& dx,
                     bool accumulate = false) const;
  // The gradients of weight and bias, from x [rows, in] and dy [rows, out] with row stride lddy.
  void BackwardWeight(const Pass& pass, Factor x, Factor dy, int64_t lddy, int64_t rows) const;

 private:
  static void SetOutput(const Output& output, MatmulArgs<>* args);
};

}  // namespace heed
