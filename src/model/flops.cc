#include "model/flops.h"

#include <fmt/format.h>

namespace heed {

std::unordered_map<std::string, int64_t> ForwardFlops(const Gpt& model, int64_t B, int64_t T) {
  const int64_t rows = B * T;
  const auto linear = [&](const Linear& l) { return 2 * rows * l.in * l.out; };
  std::unordered_map<std::string, int64_t> flops;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const Block& block = model.blocks()[i];
    const Attention& a = block.attention;
    const std::string h = fmt::format("h.{}.", i);
    for (const Linear& part : a.qkv) flops[h + "attn.qkv"] += linear(part);
    const int64_t pairs = B * a.n_head * (T * (T + 1) / 2);
    flops[h + "attn.scores"] = 2 * pairs * a.head_dim;
    flops[h + "attn.merged"] = 2 * pairs * a.head_dim;
    flops[h + "middle"] = linear(a.proj);
    flops[h + "mlp.fc"] = linear(block.mlp.fc);
    if (block.mlp.swiglu) flops[h + "mlp.gate"] = linear(block.mlp.gate);
    flops[h + "output"] = linear(block.mlp.proj);
  }
  flops["logits"] = 2 * rows * model.head().C * model.head().V;
  return flops;
}

int64_t TotalForwardFlops(const Gpt& model, int64_t B, int64_t T) {
  int64_t total = 0;
  for (const auto& [tensor, flops] : ForwardFlops(model, B, T)) total += flops;
  return total;
}

int64_t TrainingStepFlops(const Gpt& model, int64_t B, int64_t T) {
  return 3 * TotalForwardFlops(model, B, T);
}

}  // namespace heed
