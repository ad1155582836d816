// Rotary positions in place. See RopeArgs.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void Rope(const RopeArgs<>& a);

}  // namespace heed::simd
