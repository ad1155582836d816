// Inputs for a live program: numbers that a line of numpy makes too, so that a failing input can be
// handed back as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "inspect/attention_trace.h"
#include "verify/diagnose/attention_context.h"

namespace heed {

// What stays the same over all questions.
struct ProbeShape {
  AttentionSettings settings;  // every size is set
  int64_t n_embd = 0;
  bool bias = false;      // every projection has one
  bool fused = false;     // q, k and v lie in one c_attn.weight [(H + 2 Hkv)·D, C]
  AttentionContext told;  // settings alone, those that hold for every question
};

// One question's input. Weights depend on the shape and the seed alone.
struct Probe {
  ProbeShape shape;
  int64_t B = 2, T = 9;
  uint64_t seed = 1;
  double gain = 1;              // of x, a power of two
  std::vector<int64_t> chunks;  // through a cache, in these pieces; none: at once
  std::string mode = "eval";
};

// Sizes that are not given (0) chosen pairwise different, with q, k and v of as many heads unless
// n_kv_head is given. Errors (kRequest): sizes that do not go together.
Result<ProbeShape> ChooseShape(AttentionSettings given, int64_t n_embd, int64_t B, int64_t T);

// x [B, T, C] and the weights: uniform numbers of 24 bits by SplitMix64 (Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", 2014), times powers of two that spread the scores by
// about 2.
AttentionCase MakeCase(const Probe& probe);

// What the layer is told besides: of the shape, and by the mode. `padded`: rows begin with padding,
// the first with one more than the next. `alibi`: slopes. `qk_norm` and `qk_layernorm`: norms of q
// and k before the rotation, each with a gain, a LayerNorm with a bias.
AttentionContext MakeContext(const Probe& probe);

// The same in numpy, ending in a line that compares y's row [b, t] with `expected`.
std::string ProbeCode(const Probe& probe, const std::vector<double>& y, int64_t b, int64_t t);

}  // namespace heed
