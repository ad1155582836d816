// Causal self-attention with grouped queries: projections, rotary positions, attention over the
// batch itself or over a cache, output projection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/pass.h"
#include "nn/rope.h"
#include "tensor/plan.h"

namespace heed {

// One layer's keys (already rotated) and values of earlier positions, and room for this pass's.
struct KeyValueCache {
  float* k = nullptr;  // [B, Hkv, capacity, D]
  float* v = nullptr;
  int64_t capacity = 0;
  const int32_t* lengths = nullptr;  // [B]: positions held once this pass has been appended
};

struct Attention {
  int64_t C = 0, n_head = 0, n_kv_head = 0, head_dim = 0;
  const RopeTable* rope = nullptr;  // or null
  // No queries and keys: they stay 0, so every score is 0 and the pattern uniform, and z is the
  // mean of the values so far. qkv projects the values alone.
  bool averaged = false;
  bool interleaved = false;
  int64_t window = 0;         // keys that each query sees, itself included; 0 for all
  uint32_t dropout_site = 0;  // the pattern's; the next site is the output's
  std::vector<Linear> qkv;    // one fused projection, or q, k and v apart
  Linear proj;

  struct State {
    float* qkv = nullptr;  // [B, T, (H + 2 Hkv) D]: q and k rotated
    float* z = nullptr;    // [B, T, H, D]: heads side by side, so already merged
    float* lse = nullptr;  // [B, H, T]
  };
  // Gradients on the way; one set serves all layers.
  struct Scratch {
    float* dqkv = nullptr;  // [B, T, (H + 2 Hkv) D]
    float* dz = nullptr;    // [B, T, H, D]
  };

  int64_t q_width() const { return n_head * head_dim; }
  int64_t kv_width() const { return n_kv_head * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // Where the projection begins in a row of State::qkv.
  int64_t first_column() const { return averaged ? q_width() + kv_width() : 0; }

  void PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                 Scratch* scratch) const;

  // y [B, T, C] = residual + dropout(attention(x)), x and residual [B, T, C]. With a cache, k and v
  // are appended to it and attention reads it; y may be the residual itself. y and the residual
  // begin at pass.first_output.
  void Forward(const Pass& pass, const float* x, const State& state, const KeyValueCache* cache,
               const float* residual, float* y) const;

  // From dy [B, T, C], the gradient of the projected output (behind its dropout): sets dx [B, T, C]
  // and the weights' gradients. x is the input that Forward had.
  void Backward(const Pass& pass, const float* x, const State& state, const Scratch& scratch,
                const float* dy, float* dx) const;

 private:
  // Turns `count` heads, neighbours in each row of qkv, from position `first` on.
  void Rotate(const Pass& pass, float* heads, int64_t count, int64_t first, bool inverse) const;
  AttentionArgs<> Args(const Pass& pass, const State& state) const;
};

}  // namespace heed
