// Causal self-attention with grouped heads, forward and backward, that never holds T × S numbers.
// See AttentionArgs for shapes and strides.
//
// A row of z is a function of its own query and of the keys it sees, in every bit: key tiles start
// at multiples of their width, and no sum depends on the rows computed beside it. So later
// positions, other sequences, chunks, a cache and the thread count change nothing. Numbers at
// hidden keys are never multiplied, not even a NaN. Queries that see no key have z = 0 and
// lse = -inf. Backward's bits do not depend on the thread count.
#pragma once

#include "kernels/args.h"

namespace heed::simd {

void AttentionForward(const AttentionArgs<>& a);
void AttentionBackward(const AttentionArgs<>& a);

}  // namespace heed::simd
