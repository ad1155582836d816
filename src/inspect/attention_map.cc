#include "inspect/attention_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspect/attention_trace.h"
#include "io/safetensors.h"

namespace heed {
namespace {

// One layer's rotated queries and keys of a pass over one text, as a case of their own.
AttentionCase CaseOf(const Attention& layer, const float* qkv, int64_t T) {
  AttentionCase attention;
  attention.settings = {layer.n_head, layer.n_kv_head, layer.head_dim};
  attention.settings.rotary_dim = layer.head_dim;
  attention.B = 1;
  attention.T = T;
  const auto heads = [&](int64_t count, int64_t column, std::vector<double>* out) {
    for (int64_t h = 0; h < count; ++h) {
      for (int64_t t = 0; t < T; ++t) {
        const float* row = qkv + t * layer.qkv_width() + column + h * layer.head_dim;
        out->insert(out->end(), row, row + layer.head_dim);
      }
    }
  };
  heads(layer.n_head, 0, &attention.q);
  heads(layer.n_kv_head, layer.q_width(), &attention.k);
  heads(layer.n_kv_head, layer.q_width() + layer.kv_width(), &attention.v);
  return attention;
}

// The memory of the planned tensor of that name.
const float* DataOf(const Plan& plan, const std::string& name) {
  const auto& tensors = plan.tensors();
  const auto at = std::ranges::find(tensors, name, &PlannedTensor::name);
  return plan.data(static_cast<size_t>(at - tensors.begin()));
}

}  // namespace

Result<AttentionMaps> ReadAttentionMaps(const Gpt& model, std::span<const int32_t> tokens) {
  const ModelConfig& c = model.config();
  const auto T = static_cast<int64_t>(tokens.size());
  if (c.n_layer == 0) {
    return BadRequest("model", std::string(NameOf(c.model)), "a model with attention");
  }
  if (T < 1 || T > c.block_size) {
    return BadRequest("text", fmt::format("{} tokens", T),
                      fmt::format("1 to {}, the model's context", c.block_size));
  }
  // Activations of training keep every layer's own.
  HEED_ASSIGN(const std::unique_ptr<Activations> activations,
              Activations::Create(model, 1, T, /*training=*/true));
  model.Forward(model.NewPass(1, T), tokens.data(), activations.get());
  AttentionMaps maps{c.n_layer, c.n_head, T, {}};
  maps.pattern.reserve(static_cast<size_t>(c.n_layer * c.n_head * T * T));
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const float* qkv = DataOf(activations->plan(), fmt::format("h.{}.attn.qkv", i));
    const auto traced =
        TraceAttention(CaseOf(model.blocks()[static_cast<size_t>(i)].attention, qkv, T));
    const auto pattern = std::ranges::find(traced, "pattern", &TracedTensor::name);
    maps.pattern.insert(maps.pattern.end(), pattern->values.begin(), pattern->values.end());
  }
  return maps;
}

HeadHabits HabitsOf(const AttentionMaps& maps, int64_t layer, int64_t head) {
  const std::span<const float> map = maps.Map(layer, head);
  const int64_t T = maps.T;
  HeadHabits habits;
  for (int64_t t = 0; t < T; ++t) {
    const std::span<const float> row = map.subspan(static_cast<size_t>(t * T));
    for (int64_t s = 0; s <= t; ++s) {
      const double p = row[s];
      if (p > 0) habits.entropy -= p * std::log(p);
      habits.distance += p * static_cast<double>(t - s);
    }
    habits.self += row[t];
    if (t == 0) continue;
    habits.previous += row[t - 1];
    habits.first += row[0];
  }
  const auto queries = static_cast<double>(T);
  habits.entropy /= queries;
  habits.distance /= queries;
  habits.self /= queries;
  if (T > 1) {
    habits.previous /= queries - 1;
    habits.first /= queries - 1;
  }
  return habits;
}

Status WriteAttentionMaps(const std::string& path, const AttentionMaps& maps,
                          std::span<const int32_t> tokens, bool overwrite) {
  const std::vector<TensorToWrite> tensors = {
      {"pattern", DType::kF32, {maps.n_layer, maps.n_head, maps.T, maps.T}, maps.pattern.data()},
      {"tokens", DType::kI32, {maps.T}, tokens.data()}};
  return WriteSafetensors(path, tensors, {{"axes", "layer head query key"}}, overwrite);
}

}  // namespace heed
