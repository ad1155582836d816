// A training pass with one sequence in each lane. See NarrowArgs.
#pragma once

#include "kernels/narrow.h"

namespace heed::simd {

double Narrow(const NarrowGpt& model, const NarrowArgs& args);

}  // namespace heed::simd
