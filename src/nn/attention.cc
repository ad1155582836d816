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

void Attention::Rotate(const Pass& pass, float* heads, int64_t count, int64_t first,
                       bool inverse) const {
  if (rope == nullptr) return;
  RopeArgs<> args{pass.B, pass.T - first, count, head_dim, rope->half, interleaved, inverse};
  args.x = heads + first * qkv_width();
  args.row = qkv_width();
  args.cos = rope->cos.data();
  args.sin = rope->sin.data();
  args.offsets = pass.offsets;
  if (first > 0) {
    args.offset = first + (pass.offsets == nullptr ? 0 : pass.offsets[0]);
    args.offsets = nullptr;
  }
  pass.kernels->rope(args);
}

AttentionArgs<> Attention::Args(const Pass& pass, const State& state) const {
  const int64_t first = pass.first_output;
  AttentionArgs<> args{pass.B, pass.T - first, pass.T, n_head, n_kv_head, head_dim};
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  args.window = window;
  args.arithmetic = pass.arithmetic;
  args.dropout = pass.Dropout(dropout_site);
  args.q = state.qkv + first * qkv_width();
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
  const int64_t first = pass.first_output;
  for (const Linear& part : qkv) {
    // Queries of their own are projected for the outputs alone.
    const int64_t row = column == 0 && qkv.size() > 1 ? first : 0;
    part.Forward(pass, x + row * C, pass.rows() - row,
                 {state.qkv + row * qkv_width() + column, qkv_width()});
    column += part.out;
  }
  if (first == 0) {
    // Queries and keys lie next to each other: one pass over H + Hkv heads.
    Rotate(pass, state.qkv, n_head + n_kv_head, 0, /*inverse=*/false);
  } else {
    Rotate(pass, state.qkv, n_head, first, /*inverse=*/false);
    Rotate(pass, state.qkv + q_width(), n_kv_head, 0, /*inverse=*/false);
  }
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
  ProjectToResidual(pass.Outputs(), proj, dropout_site + 1, state.z, residual, y);
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
  Rotate(pass, scratch.dqkv, n_head + n_kv_head, 0, /*inverse=*/true);
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
