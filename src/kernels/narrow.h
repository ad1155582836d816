// One training pass of a narrow GPT as a single operation. Where a row has a handful of channels,
// operations over rows spend their time on calls and on parts of vectors; here the vector's lanes
// are sequences of the batch, so that every step of the model is plain arithmetic on whole vectors
// with the weights as scalars: arrays are [T, C, lanes].
#pragma once

#include <cstdint>
#include <vector>

namespace heed {

// Offsets count floats from the start of the block that holds every parameter, or gradient.
inline constexpr int64_t kNoParameter = -1;

// y[o] = sum over i of x[i] · w(i, o) + bias[o], w(i, o) at weight + i·in_step + o·out_step.
struct NarrowLinear {
  int64_t in = 0, out = 0;
  int64_t weight = 0, in_step = 0, out_step = 0;
  int64_t bias = kNoParameter;
};

struct NarrowNorm {
  int64_t gain = 0;
  int64_t bias = kNoParameter;
};

struct NarrowBlock {
  NarrowNorm norm_1, norm_2;
  std::vector<NarrowLinear> qkv;  // their outputs side by side are q, k, v
  NarrowLinear proj;
  NarrowLinear fc, gate, mlp_proj;  // gate for swiglu only
};

// A GPT as model/config.h means it, without dropout and sliding windows.
struct NarrowGpt {
  int64_t C = 0, V = 0, H = 0, Hkv = 0, D = 0, inner = 0;
  bool rms = false;
  double eps = 1e-5;
  bool swiglu = false;  // else gelu
  int64_t half = 0;     // rotated pairs of a head
  bool interleaved = false;
  int64_t wte = 0;
  int64_t wpe = kNoParameter;
  std::vector<NarrowBlock> blocks;
  NarrowNorm norm;
  NarrowLinear head;       // its weight may be wte
  int64_t parameters = 0;  // floats in their block: a multiple of 16, the gaps between them 0

  int64_t q_width() const { return H * D; }
  int64_t qkv_width() const { return (H + 2 * Hkv) * D; }
};

// The bounds of NarrowGpt: arrays of registers have these sizes.
inline constexpr int64_t kNarrowHeadDim = 16;
inline constexpr int64_t kNarrowLanes = 16;  // sequences in a vector, at most

struct NarrowArgs {
  int64_t B = 0, T = 0;
  const int32_t* tokens = nullptr;   // [B, T], each in [0, V)
  const int32_t* targets = nullptr;  // [B, T], -1 is ignored
  const float* parameters = nullptr;
  const float* cos = nullptr;  // [positions, half]
  const float* sin = nullptr;
  const float* positions = nullptr;  // [positions, C] added to the embedding without wpe, or null
  float* gradients = nullptr;        // of `scale` times the loss; null for the loss alone
  bool accumulate = false;           // gradients are added to rather than set
  float scale = 1;
  float* workspace = nullptr;  // [pieces, NarrowWorkspace::floats], aligned to 64 bytes
};

// The batch is cut into runs of whole groups of kNarrowLanes sequences, as many as are worth a
// thread of their own; the last may be shorter.
struct NarrowSplit {
  NarrowSplit(const NarrowGpt& model, int64_t B, int64_t T);
  int64_t pieces, size;  // runs, and the sequences of each
};

// Where everything lies in the workspace of one piece, in vectors: as many sequences as there are
// lanes are on their way at a time, whole passes one after the other.
struct NarrowWorkspace {
  struct Block {
    int64_t xhat_1, rstd_1;  // [T, C], [T]
    int64_t qkv;             // [T, qkv_width], q and k rotated
    int64_t weights;         // [H, T (T + 1) / 2]: exp(score - max) of the keys up to each query
    int64_t inverse;         // [H, T]: 1 / the sum of these
    int64_t z;               // [T, q_width]
    int64_t xhat_2, rstd_2;
    int64_t h;      // [T, inner]: the activation's output
    int64_t slope;  // [T, inner]: its derivative by fc, or by gate
    int64_t silu;   // [T, inner]: its derivative by fc; swiglu only
  };
  NarrowWorkspace(const NarrowGpt& model, int64_t T);

  std::vector<Block> blocks;
  int64_t tokens, targets;  // [T], int32
  int64_t x;                // [T, C]: the residual stream, then its gradient
  int64_t normed, dnormed;  // [T, C]
  int64_t xhat, rstd;       // of the last norm
  int64_t logits;           // [T, V], then their gradient
  int64_t dqkv;             // [T, qkv_width]
  int64_t dz;               // [T, q_width]
  int64_t gradients;        // [parameters]: a sum in every lane
  int64_t dwte;             // [V, C] floats
  int64_t floats;           // of the whole, at kNarrowLanes
};

}  // namespace heed
