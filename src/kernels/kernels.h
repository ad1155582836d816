// The table of operations. There are two: `ReferenceKernels`, loops written to be read, and
// `SimdKernels`, the fast ones for the best instruction set of this processor. Layers take a table
// and never ask which one it is. No operation allocates per call beyond its scratch, aborts, or
// depends on the number of threads in any bit of its result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/args.h"

namespace heed {

struct NarrowGpt;
struct NarrowArgs;

struct Kernels {
  const char* name;

  void (*matmul)(const MatmulArgs<>&);

  void (*norm_forward)(const NormArgs<>&);   // x -> y, mean, rstd
  void (*norm_apply)(const NormArgs<>&);     // x, mean, rstd -> y: recomputed for backward
  void (*norm_backward)(const NormArgs<>&);  // dy -> dx (added), dgain, dbias

  void (*rope)(const RopeArgs<>&);
  void (*attention_forward)(const AttentionArgs<>&);
  void (*attention_backward)(const AttentionArgs<>&);

  void (*swiglu_forward)(const SwigluArgs<>&);
  void (*swiglu_backward)(const SwigluArgs<>&);

  void (*embedding_forward)(const EmbeddingArgs<>&);
  void (*embedding_backward)(const EmbeddingArgs<>&);

  void (*cross_entropy)(const CrossEntropyArgs<>&);

  // x [n] times its dropout factor, in place; element i has index first + i.
  void (*dropout)(float* x, int64_t n, uint64_t first, const DropoutArgs&);
  // y [n] += x [n].
  void (*add)(float* y, const float* x, int64_t n);
  // out [C] = (or +=) column sums of x [rows, C] with row stride ld: the gradient of a bias.
  void (*column_sum)(const float* x, int64_t rows, int64_t C, int64_t ld, float* out,
                     bool accumulate);
  // The same of x in bfloat16.
  void (*column_sum_bf16)(const uint16_t* x, int64_t rows, int64_t C, int64_t ld, float* out,
                          bool accumulate);
  // Sum of squares of x [n], in double.
  double (*sum_squares)(const float* x, int64_t n);
  void (*adamw)(const AdamwArgs<>&);

  // A whole training pass of a narrow model (kernels/narrow.h): the sum of the losses, and all
  // gradients. Null where the operations above do it: in the plain table, and in one of which an
  // operation was replaced.
  double (*narrow)(const NarrowGpt&, const NarrowArgs&);
};

const Kernels& ReferenceKernels();
const Kernels& SimdKernels();

// The instruction sets that SimdKernels can run on here, best first, by the names of Highway
// ("AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> SimdTargets();
// The one in use.
std::string SimdTarget();
// Makes SimdKernels use one of SimdTargets(), or the best again when empty: for tests.
void ForceSimdTarget(const std::string& target);

}  // namespace heed
