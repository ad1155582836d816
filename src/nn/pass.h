// What all layers of one forward and backward pass share.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace heed {

struct Pass {
  const Kernels* kernels = nullptr;
  int64_t B = 0;            // sequences
  int64_t T = 0;            // positions of each
  bool training = false;    // dropout is on, and what backward needs is kept
  bool accumulate = false;  // gradients are added to those of an earlier micro-batch
  double dropout = 0;
  uint64_t seed = 0;
  Arithmetic arithmetic =
      Arithmetic::kF32;  // of products: with weights, and attention's in training
  uint32_t step = 0;     // counts micro-batches; with the seed it fixes every dropout mask
  // Position of each sequence's first row [B], or null for 0: behind a cache of earlier positions.
  const int32_t* offsets = nullptr;

  int64_t rows() const { return B * T; }
  DropoutArgs Dropout(uint32_t site) const {
    return {training ? dropout : 0.0, {seed, step, kDropoutStream + site}};
  }
};

}  // namespace heed
