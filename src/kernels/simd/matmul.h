// The fast matrix product. Element (i, j) is one chain of multiply-adds in the order of k, whatever
// M, N, the layouts, the blocking or the number of threads: so a row's bits depend on nothing but
// that row, and a product over K in parts with `accumulate` has the bits of the whole.
//
// With Arithmetic::kBf16 the operands are rounded while they are packed. Processors with AVX-512
// BF16 continue the chain by two products at a time, where numbers below 2^-126 count as 0 and
// parts of K must be even to have the bits of the whole; elsewhere the chain is the one above.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void Matmul(const MatmulArgs<>& args);
void MatmulBf16(const MatmulArgs<>& args);
// With packed blocks alone.
void MatmulInt8(const MatmulArgs<>& args);

// Keeps the multiply-adders of one thread busy without touching memory; returns the floating-point
// operations done. Their rate is the ceiling of every product.
double MultiplyAdds(Arithmetic arithmetic, int64_t rounds);
double MultiplyAddsBf16(int64_t rounds);

}  // namespace heed::simd
