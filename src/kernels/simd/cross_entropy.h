// The operations of kernels.h for the best instruction set; reference/cross_entropy.h shows what
// they compute.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void CrossEntropy(const CrossEntropyArgs<>& args);

}  // namespace heed::simd
