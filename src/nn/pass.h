// What all layers of one forward and backward pass share.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "tensor/parameters.h"

namespace heed {

// AdamW's steps of the weights of linear layers, each taken as soon as its gradient is there: that
// one has not left the caches yet, and all of them share its memory. Without clipping only, whose
// factor is known when all gradients are.
struct UpdateInPass {
  AdamwArgs<> adamw;     // for all of them; m and v are whole blocks, laid out as the parameters
  bool measure = false;  // whether to sum squares
  double squares = 0;    // of all those gradients so far

  void Step(const Kernels& kernels, const Parameter& weight) {
    if (measure) squares += kernels.sum_squares(weight.grad, weight.elements);
    kernels.adamw(Of(weight));
  }
  AdamwArgs<> Of(const Parameter& p) const {
    AdamwArgs<> args = adamw;
    args.n = p.elements;
    args.param = p.data;
    args.grad = p.grad;
    args.m += p.offset;
    args.v += p.offset;
    return args;
  }
};

struct Pass {
  const Kernels* kernels = nullptr;
  int64_t B = 0;            // sequences
  int64_t T = 0;            // positions of each
  bool training = false;    // dropout is on, and what backward needs is kept
  bool accumulate = false;  // gradients are added to those of an earlier micro-batch
  double dropout = 0;
  uint64_t seed = 0;
  Arithmetic arithmetic = Arithmetic::kF32;  // of products
  uint32_t step = 0;  // counts micro-batches; with the seed it fixes every dropout mask
  // Position of each sequence's first row [B], or null for 0: behind a cache of earlier positions.
  const int32_t* offsets = nullptr;
  // Inference of one sequence: the position from which on the last block gives outputs; of those
  // before, nothing but its keys and values is needed.
  int64_t first_output = 0;
  UpdateInPass* update = nullptr;  // null where every weight keeps its gradient

  int64_t rows() const { return B * T; }
  // The same from first_output on, for what only looks at rows.
  Pass Outputs() const {
    Pass outputs = *this;
    outputs.T -= first_output;
    return outputs;
  }
  DropoutArgs Dropout(uint32_t site) const {
    return {training ? dropout : 0.0, {seed, step, kDropoutStream + site}};
  }
};

}  // namespace heed
