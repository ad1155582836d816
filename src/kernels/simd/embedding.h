// The operations of kernels.h for the best instruction set; reference/embedding.h shows what they
// compute.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void EmbeddingForward(const EmbeddingArgs<>& args);
void EmbeddingBackward(const EmbeddingArgs<>& args);

}  // namespace heed::simd
