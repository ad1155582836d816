// The operations of kernels.h for the best instruction set; reference/adamw.h shows what they
// compute.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void Adamw(const AdamwArgs<>& args);

}  // namespace heed::simd
