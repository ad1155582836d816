// Attention forward and backward, and decoding against a cache. "flops" counts the visible pairs
// alone: 4 D for each in forward, 10 D in backward.
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/simd/attention.h"

namespace heed {
namespace {

std::vector<float> Numbers(int64_t n, uint32_t stream) {
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(RandomNormal({1, 0, stream}, i));
  return x;
}

// A fused qkv array when S == T, else q with a dense cache.
struct Call {
  std::vector<float> q, k, v, z, lse, dz, dq, dk, dv;
  AttentionArgs<> a;
  double pairs;

  explicit Call(const benchmark::State& state) {
    a.B = state.range(0), a.T_ = state.range(1), a.S = state.range(2);
    a.H = state.range(3), a.Hkv = state.range(4), a.D = state.range(5);
    a.dropout.p = state.range(6) / 100.0;
    a.scale = 1 / std::sqrt(static_cast<float>(a.D));
    pairs = static_cast<double>(a.B * a.H * a.T_) * (a.S - (a.T_ - 1) / 2.0);
    const bool fused = a.S == a.T_;
    const int64_t row = fused ? (a.H + 2 * a.Hkv) * a.D : a.H * a.D;
    q = Numbers(a.B * a.T_ * row, 1);
    k = Numbers(fused ? 0 : a.B * a.S * a.Hkv * a.D, 2);
    v = Numbers(k.size(), 3);
    dz = Numbers(a.B * a.T_ * a.H * a.D, 4);
    z.resize(dz.size());
    lse.resize(a.B * a.H * a.T_);
    dq.resize(q.size());
    a.q = q.data(), a.q_row = row, a.q_batch = a.T_ * row;
    a.k = fused ? q.data() + a.H * a.D : k.data();
    a.v = fused ? q.data() + (a.H + a.Hkv) * a.D : v.data();
    a.kv_row = fused ? row : a.Hkv * a.D;
    a.kv_batch = a.S * a.kv_row;
    a.kv_head = a.D;
    a.z = z.data(), a.lse = lse.data(), a.dz = dz.data();
    a.dq = dq.data(), a.dk = dq.data() + a.H * a.D, a.dv = dq.data() + (a.H + a.Hkv) * a.D;
  }
};

void Count(benchmark::State& state, double flops, double bytes) {
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["flops"] = benchmark::Counter(flops, rate);
  if (bytes > 0) state.counters["bytes"] = benchmark::Counter(bytes, rate);
}

void Forward(benchmark::State& state) {
  Call call(state);
  for (auto _ : state) simd::AttentionForward(call.a);
  const AttentionArgs<>& a = call.a;
  Count(state, 4.0 * a.D * call.pairs, a.S > a.T_ ? 8.0 * a.B * a.S * a.Hkv * a.D : 0);
}

void Backward(benchmark::State& state) {
  Call call(state);
  simd::AttentionForward(call.a);
  for (auto _ : state) simd::AttentionBackward(call.a);
  Count(state, 10.0 * call.a.D * call.pairs, 0);
}

void Training(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "T", "S", "H", "Hkv", "D", "dropout%"});
  b->Args({32, 6, 6, 3, 3, 2, 0})->Args({32, 16, 16, 3, 3, 2, 0});
  b->Args({12, 64, 64, 4, 4, 32, 0})->Args({12, 64, 64, 4, 4, 32, 10});
  b->Args({8, 256, 256, 6, 6, 64, 0})->Args({8, 256, 256, 8, 2, 64, 0});
  b->Args({1, 1024, 1024, 12, 12, 64, 0});
}

void Decoding(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "T", "S", "H", "Hkv", "D", "dropout%"});
  b->Args({1, 1, 512, 8, 4, 8, 0})->Args({1, 1, 4096, 12, 12, 64, 0});
  b->Args({1, 1, 4096, 12, 4, 64, 0})->Args({1, 8, 4096, 12, 4, 64, 0});
}

BENCHMARK(Forward)->Apply(Training)->Apply(Decoding)->UseRealTime();
BENCHMARK(Backward)->Apply(Training)->UseRealTime();

}  // namespace
}  // namespace heed
