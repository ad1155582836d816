// The operations of kernels.h for the best instruction set; reference/swiglu.h shows what they
// compute.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void SwigluForward(const SwigluArgs<>& args);
void SwigluBackward(const SwigluArgs<>& args);

}  // namespace heed::simd
