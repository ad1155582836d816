// The operations of kernels.h for the best instruction set; reference/norm.h shows what they
// compute.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void NormForward(const NormArgs<>& args);
void NormApply(const NormArgs<>& args);
void NormBackward(const NormArgs<>& args);

}  // namespace heed::simd
