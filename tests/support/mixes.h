// Small models of every kind of part, with weights at which no part is idle, and sizes of which no
// two are equal where the kind allows it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "model/gpt.h"

namespace heed {

// These models are too small to share among threads, and many test programs run at a time. Tests
// of the thread count set their own.
inline const bool kOneThread = (SetNumThreads(1), true);

struct Mix {
  std::string name;
  ModelConfig config;
};

// The same sizes with a Llama's parts.
inline ModelConfig AsLlama(ModelConfig c) {
  c.position = Position::kRope;
  c.norm = NormKind::kRmsNorm;
  c.mlp = MlpKind::kSwiglu;
  c.bias = false;
  return c;
}

// B is 5 and T 13 or 70 in most tests: beside them H, Hkv, their ratio and D differ.
inline std::vector<Mix> Mixes() {
  const auto sizes = [](int64_t H, int64_t Hkv, int64_t D, int64_t C) {
    ModelConfig c;
    c.n_layer = 2;
    c.n_head = H;
    c.n_kv_head = Hkv;
    c.head_dim = D;
    c.n_embd = C;
    c.block_size = 80;
    c.vocab_size = 37;
    return c;
  };
  ModelConfig gpt2_odd = sizes(3, 3, 7, 21);
  ModelConfig gpt2_untied = sizes(2, 2, 36, 72);
  gpt2_untied.tied = false;
  ModelConfig llama_gqa = AsLlama(sizes(6, 2, 10, 60));
  llama_gqa.tied = false;
  ModelConfig llama_mqa = AsLlama(sizes(4, 1, 8, 32));
  ModelConfig partial = sizes(8, 4, 12, 96);
  partial.position = Position::kRope;
  partial.rope_pairing = RopePairing::kInterleaved;
  partial.rotary_dim = 6;
  ModelConfig narrow = sizes(6, 2, 8, 28);
  narrow.position = Position::kRope;
  narrow.mlp = MlpKind::kSwiglu;
  narrow.n_inner = 44;
  ModelConfig sinusoidal = sizes(8, 4, 3, 31);
  sinusoidal.position = Position::kSinusoidal;
  sinusoidal.norm = NormKind::kRmsNorm;
  sinusoidal.bias = false;
  ModelConfig none = sizes(3, 1, 20, 33);
  none.position = Position::kNone;
  none.norm = NormKind::kRmsNorm;
  none.mlp = MlpKind::kSwiglu;
  none.tied = false;
  // Whole vectors of pairs, which attention multiplies in bfloat16.
  ModelConfig whole_heads = AsLlama(sizes(4, 2, 32, 128));
  ModelConfig averaged = sizes(6, 2, 9, 54);
  averaged.model = ModelKind::kAveraged;
  std::vector<Mix> mixes = {{"gpt2_odd_heads", gpt2_odd},
                            {"gpt2_untied", gpt2_untied},
                            {"llama_gqa", llama_gqa},
                            {"llama_mqa_tied", llama_mqa},
                            {"rope_interleaved_partial", partial},
                            {"rope_swiglu_bias_wide", narrow},
                            {"sinusoidal_rms_gelu", sinusoidal},
                            {"none_mqa_untied", none},
                            {"llama_heads_of_32", whole_heads},
                            {"averaged_gqa", averaged}};
  for (Mix& mix : mixes) EXPECT_TRUE(mix.config.Resolve()) << mix.name;
  return mixes;
}

inline std::string MixName(const testing::TestParamInfo<Mix>& info) { return info.param.name; }

// Initialised, then every number moved: gains and biases by 0.3, weights by about 1 / sqrt(C).
inline std::unique_ptr<Gpt> NoisyModel(const ModelConfig& config, const Kernels& kernels,
                                       uint64_t seed = 1) {
  auto model = Gpt::Create(config, kernels);
  if (!model) throw std::runtime_error(model.error().Message());
  (*model)->Initialize(seed);
  uint32_t tensor = 0;
  for (Parameter& p : (*model)->parameters().all()) {
    const double scale = p.shape.size() == 1 ? 0.3 : 0.9 / std::sqrt(double(config.n_embd));
    const RandomKey key{seed, 1, tensor++};
    for (int64_t i = 0; i < p.elements; ++i) {
      p.data[i] += static_cast<float>(scale * RandomNormal(key, i));
    }
  }
  return std::move(*model);
}

inline std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab_size, uint64_t seed = 5) {
  std::vector<int32_t> tokens(n);
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(RandomBelow({seed, 2, 0}, i, vocab_size));
  }
  return tokens;
}

// Multiplies queries and keys by `factor`, so scores by its square.
inline void ScaleScores(Gpt* model, float factor) {
  const ModelConfig& c = model->config();
  for (Parameter& p : model->parameters().all()) {
    const bool fused = p.name.find("attn.c_attn.") != std::string::npos;
    const bool apart =
        p.name.find("q_proj") != std::string::npos || p.name.find("k_proj") != std::string::npos;
    const int64_t columns = p.shape.back(), scaled = (c.n_head + c.n_kv_head) * c.head_dim;
    for (int64_t i = 0; i < p.elements; ++i) {
      if (apart || (fused && i % columns < scaled)) p.data[i] *= factor;
    }
  }
}

// logits [B, T, V] of a whole pass in eval.
inline std::vector<float> FullLogits(const Gpt& model, const std::vector<int32_t>& tokens,
                                     int64_t B) {
  const auto T = static_cast<int64_t>(tokens.size()) / B;
  auto activations = *Activations::Create(model, B, T, /*training=*/false);
  const Pass pass = model.NewPass(B, T);
  const float* x = model.Forward(pass, tokens.data(), activations.get());
  std::vector<float> logits(B * T * model.config().vocab_size);
  model.Logits(pass, x, B * T, activations.get(), logits.data());
  return logits;
}

inline bool SameBits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), a.size());
}

// Runs body on the fast kernels of every instruction set here.
template <class Body>
void OnEveryTarget(const Body& body) {
  for (const std::string& target : SimdTargets()) {
    SCOPED_TRACE(target);
    ForceSimdTarget(target);
    EXPECT_EQ(SimdTarget(), target);
    body();
  }
  ForceSimdTarget("");
}

}  // namespace heed
