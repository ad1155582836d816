// A model with the weights of a golden case.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "model/gpt.h"
#include "support/golden.h"

namespace heed {

inline ModelConfig GoldenConfig(const Golden& golden) {
  ModelConfig c;
  const bool llama = golden.Text("family") == "llama";
  c.n_layer = golden.Json("n_layer");
  c.n_head = golden.Json("n_head");
  c.n_kv_head = golden.Json("n_kv_head");
  c.n_embd = golden.Json("n_embd");
  c.vocab_size = golden.Json("vocab_size");
  c.rope_theta = golden.Json("rope_theta");
  ValueOf(golden.Text("position"), &c.position);
  ValueOf(golden.Text("rope_pairing"), &c.rope_pairing);
  c.tied = !golden.Has("lm_head.weight");
  if (llama) {
    c.n_inner = golden.Json("intermediate_size");
    c.block_size = 64;
    c.norm = NormKind::kRmsNorm;
    c.norm_eps = golden.Json("rms_norm_eps");
    c.mlp = MlpKind::kSwiglu;
    c.bias = false;
  } else {
    c.block_size = golden.Json("block_size");
    c.norm_eps = golden.Json("layer_norm_epsilon");
    c.bias = golden.Has("ln_f.bias");
  }
  return c;
}

inline std::unique_ptr<Gpt> GoldenModel(const Golden& golden, const Kernels& kernels) {
  auto model = Gpt::Create(GoldenConfig(golden), kernels);
  if (!model) throw std::runtime_error(model.error().Message());
  for (Parameter& p : (*model)->parameters().all()) {
    const std::vector<float> values = golden.Floats(p.name);
    EXPECT_EQ(golden.file.Find(p.name)->shape, p.shape) << p.name;
    std::copy(values.begin(), values.end(), p.data);
  }
  return std::move(*model);
}

}  // namespace heed
