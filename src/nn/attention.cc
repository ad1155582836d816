#include "nn/attention.h"

#include <algorithm>
#include <cmath>

#include "nn/residual.h"

namespace heed {

void Attention::PlanState(Plan* plan, const std::string& name, int64_t B, int64_t T, State* state,
                          Scratch* scratch) const {
  plan->Add(&state->qkv, name + ".qkv", "attn.qkv", "B T (H+2Hkv)D", {B, T, qkv_width()},
            Lifetime::kSaved);
  const int64_t D = head_dim, row = qkv_width(), merged = q_width();
  const auto heads = [&](const char* part, int64_t count, int64_t column) {
    plan->AddView(name + part, count == n_head ? "B H T D" : "B Hkv T D", {B, count, T, D},
                  {T * row, D, row, 1}, column);
  };
  heads(".q", n_head, 0);
  heads(".k", n_kv_head, merged);
  heads(".v", n_kv_head, merged + kv_width());
  if (rope != nullptr) {
    heads(".q_rot", n_head, 0);
    heads(".k_rot", n_kv_head, merged);
  }
  plan->AddUnheld(name + ".scores", "B H T S", {B, n_head, T, T});
  plan->AddUnheld(name + ".pattern", "B H T S", {B, n_head, T, T});
  plan->Add(&state->z, name + ".merged", "attn.z", "B T HD", {B, T, merged}, Lifetime::kSaved);
  plan->AddView(name + ".z", "B H T D", {B, n_head, T, D}, {T * merged, D, merged, 1}, 0);
  if (!plan->training()) return;
  plan->Add(&state->lse, name + ".lse", "attn.lse", "B H T", {B, n_head, T}, Lifetime::kSaved);
  // By then the MLP's work is done.
  plan->Add(&scratch->dqkv, name + ".dqkv", "mlp.h", "B T (H+2Hkv)D", {B, T, qkv_width()},
            Lifetime::kScratch);
  plan->Add(&scratch->dz, name + ".dz", "dnormed", "B T H D", {B, T, n_head, head_dim},
            Lifetime::kScratch);
}

void Attention::Rotate(const Pass& pass, float* qkv_rows, bool inverse) const {
  if (rope == nullptr) return;
  // Queries and keys lie next to each other: one pass over H + Hkv heads.
  RopeArgs<> args{pass.B, pass.T, n_head + n_kv_head, head_dim, rope->half, interleaved, inverse};
  args.x = qkv_rows;
  args.row = qkv_width();
  args.cos = rope->cos.data();
  args.sin = rope->sin.data();
  args.offsets = pass.offsets;
  pass.kernels->rope(args);
}

AttentionArgs<> Attention::Args(const Pass& pass, const State& state) const {
  AttentionArgs<> args{pass.B, pass.T, pass.T, n_head, n_kv_head, head_dim};
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  args.window = window;
  // Inference keeps the bits of chunks and of a cache.
  if (pass.training) args.arithmetic = pass.arithmetic;
  args.dropout = pass.Dropout(dropout_site);
  args.q = state.qkv;
  args.q_row = qkv_width();
  args.q_batch = pass.T * args.q_row;
  args.k = state.qkv + q_width();
  args.v = args.k + kv_width();
  args.kv_batch = args.q_batch;
  args.kv_row = args.q_row;
  args.kv_head = head_dim;
  args.z = state.z;
  args.lse = state.lse;
  return args;
}

namespace {

// Copies this pass's keys and values behind those that the cache holds.
void Append(const Pass& pass, const Attention& a, const float* qkv, const KeyValueCache& cache) {
  const int64_t D = a.head_dim;
  for (int64_t b = 0; b < pass.B; ++b) {
    const int64_t first = cache.lengths[b] - pass.T;
    for (int64_t t = 0; t < pass.T; ++t) {
      const float* k = qkv + (b * pass.T + t) * a.qkv_width() + a.q_width();
      for (int64_t h = 0; h < a.n_kv_head; ++h) {
        const int64_t at = ((b * a.n_kv_head + h) * cache.capacity + first + t) * D;
        std::copy_n(k + h * D, D, cache.k + at);
        std::copy_n(k + a.kv_width() + h * D, D, cache.v + at);
      }
    }
  }
}

}  // namespace

void Attention::Forward(const Pass& pass, const float* x, const State& state,
                        const KeyValueCache* cache, const float* residual, float* y) const {
  int64_t column = first_column();
  for (const Linear& part : qkv) {
    part.Forward(pass, x, pass.rows(), {state.qkv + column, qkv_width()});
    column += part.out;
  }
  Rotate(pass, state.qkv, /*inverse=*/false);
  AttentionArgs<> args = Args(pass, state);
  if (cache != nullptr) {
    Append(pass, *this, state.qkv, *cache);
    args.k = cache->k;
    args.v = cache->v;
    args.kv_row = head_dim;
    args.kv_head = cache->capacity * head_dim;
    args.kv_batch = n_kv_head * args.kv_head;
    args.S = cache->capacity;
    args.lengths = cache->lengths;
  }
  pass.kernels->attention_forward(args);
  ProjectToResidual(pass, proj, dropout_site + 1, state.z, residual, y);
}

void Attention::Backward(const Pass& pass, const float* x, const State& state,
                         const Scratch& scratch, const float* dy, float* dx) const {
  proj.BackwardInput(pass, dy, C, pass.rows(), {scratch.dz, q_width()});
  proj.BackwardWeight(pass, state.z, dy, C, pass.rows());
  AttentionArgs<> args = Args(pass, state);
  args.dz = scratch.dz;
  args.dq = scratch.dqkv;
  args.dk = args.dq + q_width();
  args.dv = args.dk + kv_width();
  pass.kernels->attention_backward(args);
  Rotate(pass, scratch.dqkv, /*inverse=*/true);
  int64_t column = first_column();
  for (const Linear& part : qkv) {
    const float* d = scratch.dqkv + column;
    part.BackwardInput(pass, d, qkv_width(), pass.rows(), {dx, C},
                       /*accumulate=*/&part != &qkv.front());
    part.BackwardWeight(pass, x, d, qkv_width(), pass.rows());
    column += part.out;
  }
}

}  // namespace heed
