// AdamW (Loshchilov, Hutter 2019) over a ParameterSet, with clipping by the global gradient norm;
// the matrices of linear layers can go by Muon instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "tensor/parameters.h"

namespace heed {

struct AdamwSettings {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double weight_decay = 0.1;  // on tensors of two and more dimensions only
  double grad_clip = 1.0;     // largest gradient norm; 0 leaves gradients alone
  double muon = 0;            // Muon's learning rate as a multiple of AdamW's; 0: AdamW for all
};

class Adamw {
 public:
  // Moments start at zero. `parameters` must outlive this. Error: not enough memory.
  static Result<std::unique_ptr<Adamw>> Create(ParameterSet* parameters);

  // The next step, for the weights of linear layers that take it in the backward pass
  // (UpdateInPass); m and v are whole blocks. No clipping, no Muon.
  AdamwArgs<> NextInPass(const AdamwSettings& settings, double learning_rate);
  // One update from the gradients, given their norm (see GradientNorm), of the parameters that do
  // not share them.
  void Step(const Kernels& kernels, const AdamwSettings& settings, double learning_rate,
            double gradient_norm);

  int64_t steps() const { return steps_; }  // updates so far
  void set_steps(int64_t steps) { steps_ = steps; }
  // Muon's momentum is its m; its v stays 0.
  float* m(const Parameter& p) { return moments_.floats() + p.offset; }
  float* v(const Parameter& p) { return m(p) + parameters_->block_elements(); }

 private:
  explicit Adamw(ParameterSet* parameters) : parameters_(parameters) {}
  void StepMatrices(const Kernels& kernels, const AdamwSettings& settings, double learning_rate,
                    double grad_scale);

  ParameterSet* parameters_;
  Buffer moments_;                           // m, then v, each laid out as the parameters
  std::vector<std::vector<float>> scratch_;  // of Muon, one for each thread
  int64_t steps_ = 0;
};

// The square root of the sum of squares of all gradients that are not shared, and of `squares`,
// summed in a fixed order.
double GradientNorm(const Kernels& kernels, const ParameterSet& parameters, double squares = 0);

// Linear warm-up, then a cosine from learning_rate down to min_lr at lr_decay_iters, min_lr after
// (nanoGPT's schedule). Iterations count from 0.
struct Schedule {
  double learning_rate = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_iters = 100;
  int64_t lr_decay_iters = 2000;

  double At(int64_t iteration) const;
};

}  // namespace heed
