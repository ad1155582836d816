// The fast matrix product. Element (i, j) is one chain of multiply-adds in the order of k, whatever
// M, N, the layouts, the blocking or the number of threads: so a row's bits depend on nothing but
// that row, and a product over K in parts with `accumulate` has the bits of the whole.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void Matmul(const MatmulArgs<>& args);

}  // namespace heed::simd
