// y = x W + b, with W stored as [in, out] (GPT-2's files) or [out, in] (torch.nn.Linear).
#pragma once

#include <cstdint>
#include <string>

#include "nn/pass.h"
#include "tensor/parameters.h"

namespace heed {

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
  // ldy), epilogue and aux.
  struct Output {
    float* y = nullptr;
    int64_t ldy = 0;
    const float* residual = nullptr;
    Epilogue epilogue = Epilogue::kNone;
    float* aux = nullptr;
  };
  void Forward(const Pass& pass, const float* x, int64_t rows, const Output& output) const;

  // dx [rows, in] = (or, with accumulate, +=) dy Wᵀ. With aux: the pre-activations of the GELU
  // behind which this layer stands [rows, in]; dx becomes their gradient and aux the GELU's output.
  void BackwardInput(const Pass& pass, const float* dy, int64_t lddy, int64_t rows, float* dx,
                     bool accumulate = false, float* aux = nullptr) const;
  // The gradients of weight and bias, from x [rows, in] and dy [rows, out] with row stride lddy.
  void BackwardWeight(const Pass& pass, const float* x, const float* dy, int64_t lddy,
                      int64_t rows) const;
};

}  // namespace heed
