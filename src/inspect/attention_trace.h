// One causal self-attention on somebody's numbers, computed in double by the reference kernels with
// every intermediate kept.
//
// Letters: B batch, T positions of this chunk, P positions before it (a cache), S = P + T, C model
// width, H query heads, Hkv key/value heads, D head width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/attention_settings.h"
#include "tensor/dtype.h"

namespace heed {

// A stored weight and its bias as a part of a SavedLinear.
struct WeightPart {
  std::string weight;         // its name in the file
  std::string bias;           // "" when there is none
  bool transposed = false;    // stored [in, out], as GPT-2's Conv1D is, not [out, in]
  std::vector<int64_t> rows;  // of the whole weight, in the order of this part's own outputs
};

// y = x Wᵀ + b, put together from one stored weight or several.
struct SavedLinear {
  int64_t out = 0, in = 0;
  std::vector<double> weight;     // [out, in]
  std::vector<double> bias;       // [out], 0 where none is stored
  std::vector<WeightPart> parts;  // none: there is no such projection
};

// One of x with qkv, or q, k and v.
struct AttentionCase {
  AttentionSettings settings;  // every size is set
  int64_t B = 0, T = 0, P = 0;
  DType dtype = DType::kF32;    // for results: F64 when x or q is, else F32
  std::vector<double> x;        // [B, T, C]
  SavedLinear qkv;              // rows of q, then k, then v
  std::vector<double> q, k, v;  // [B, H, T, D], [B, Hkv, T, D]
  SavedLinear proj;             // of merged to y, or none
  std::vector<double> past_k;   // [B, Hkv, P, D], rotated
  std::vector<double> past_v;   // [B, Hkv, P, D]
  std::vector<double> dy;       // like y, or like merged without a projection; or empty

  int64_t S() const { return P + T; }
};

struct TracedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> values;
};

// In the order of the computation:
//   q [B, H, T, D]  k v [B, Hkv, T, D]  q_rot k_rot alike
//   scores pattern [B, H, T, S], scaled; -inf and exactly 0 where a key is hidden
//   z [B, H, T, D]  merged [B, T, H·D]  y [B, T, C], with a projection
// and when there is dy, the gradients of sum(y · dy), or of sum(merged · dy): grad.x or grad.q
// grad.k grad.v, grad.NAME of every stored weight and bias in its own layout, grad.past_k
// grad.past_v.
// The products of the weights' gradients run over the first `weight_rows` of the B·T rows, over all
// when 0: what a faulty backward pass does.
std::vector<TracedTensor> TraceAttention(const AttentionCase& attention, int64_t weight_rows = 0);

}  // namespace heed
