// Dropout of kernels.h for the best instruction set; reference/dropout.h shows what it computes.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void Dropout(float* x, int64_t n, uint64_t first, const DropoutArgs& args);

}  // namespace heed::simd
