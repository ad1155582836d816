#include "model/config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

namespace heed {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 31;
constexpr int64_t kMostLayers = 1024;
constexpr auto kMostParameters = static_cast<unsigned __int128>(int64_t{1} << 60);

// Sizes are at most 2^31, so that the sum stays below 2^127.
unsigned __int128 CountParameters(const ModelConfig& c) {
  using Wide = unsigned __int128;
  const Wide width = c.n_embd, inner = c.n_inner, bias = c.bias ? 1 : 0;
  const Wide q_width = Wide(c.n_head) * c.head_dim;
  const Wide kv_width = Wide(c.n_kv_head) * c.head_dim;
  const Wide qkv_width = c.model == ModelKind::kAveraged ? kv_width : q_width + 2 * kv_width;
  const Wide norm = c.norm == NormKind::kLayerNorm ? width * (1 + bias) : width;
  const Wide attention = width * qkv_width + q_width * width + (c.qkv_bias() ? qkv_width : 0) +
                         (c.attention_proj_bias() ? width : 0);
  const Wide inner_layers = c.mlp == MlpKind::kSwiglu ? 2 : 1;  // gate and up, or up alone
  const Wide mlp = (inner_layers + 1) * width * inner + bias * (inner_layers * inner + width);
  const Wide embedding = Wide(c.vocab_size) * width;
  const Wide positions = c.position == Position::kLearned ? Wide(c.block_size) * width : 0;
  const Wide last_norm = c.model == ModelKind::kBigramEmbedding ? 0 : norm;
  return embedding + positions + Wide(c.n_layer) * (2 * norm + attention + mlp) + last_norm +
         (c.tied ? 0 : embedding);
}

Status CheckSize(std::string_view field, int64_t value, int64_t most = kLargestSize) {
  if (value >= 1 && value <= most) return {};
  return BadRequest(std::string(field), fmt::format("{}", value), fmt::format("1 to {}", most));
}

// A size for which 0 stands for its default.
Status CheckOptionalSize(std::string_view field, int64_t value) {
  if (value >= 0 && value <= kLargestSize) return {};
  return BadRequest(std::string(field), fmt::format("{}", value),
                    fmt::format("0 (the default) to {}", kLargestSize));
}

// What a baseline leaves out cannot be asked of it.
Status CheckKind(const ModelConfig& c) {
  switch (c.model) {
    case ModelKind::kGpt:
      return CheckSize("n_layer", c.n_layer, kMostLayers);
    case ModelKind::kAveraged:
      if (c.position == Position::kRope) {
        return BadRequest("position", "rope in an averaged model", "learned, sinusoidal or none",
                          "an average has no queries and keys to turn");
      }
      return CheckSize("n_layer", c.n_layer, kMostLayers);
    case ModelKind::kBigramEmbedding:
      if (c.n_layer != 0) {
        return BadRequest("n_layer", fmt::format("{}", c.n_layer),
                          "0, for a bigram-embedding model has no blocks");
      }
      if (c.position != Position::kNone || c.tied) {
        return BadRequest(c.tied ? "tied" : "position",
                          c.tied ? "true" : std::string(NameOf(c.position)),
                          c.tied ? "false, for a bigram-embedding model is two matrices"
                                 : "none, for a bigram-embedding model sees one token");
      }
      return {};
    case ModelKind::kNgram:
      break;
  }
  return BadRequest("model", "ngram", "a gpt, averaged or bigram-embedding model",
                    "an n-gram model is counts, without layers: heed train, eval, generate and "
                    "info know it");
}

Status CheckHeads(ModelConfig* c) {
  HEED_TRY(CheckOptionalSize("head_dim", c->head_dim));
  HEED_TRY(CheckOptionalSize("n_kv_head", c->n_kv_head));
  if (c->head_dim == 0) {
    if (c->n_embd % c->n_head != 0) {
      return BadRequest("n_head", fmt::format("{} at n_embd {}", c->n_head, c->n_embd),
                        "a divisor of n_embd", "change one of them, or give head_dim");
    }
    c->head_dim = c->n_embd / c->n_head;
  }
  if (c->n_kv_head == 0) c->n_kv_head = c->n_head;
  if (c->n_head % c->n_kv_head != 0) {
    return BadRequest("n_kv_head", fmt::format("{} at n_head {}", c->n_kv_head, c->n_head),
                      "a divisor of n_head");
  }
  return {};
}

Status CheckRopeScaling(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const auto check = [](const char* field, double value, double above) -> Status {
    if (std::isfinite(value) && value > above) return {};
    return BadRequest(fmt::format("rope_scaling.{}", field), fmt::format("{}", value),
                      fmt::format("a finite number above {}", above));
  };
  if (s.rope_type == RopeStretch::kNone) return {};
  HEED_TRY(check("factor", s.factor, 0));
  if (s.rope_type == RopeStretch::kLinear) return {};
  HEED_TRY(CheckSize("rope_scaling.original_max_position_embeddings",
                     s.original_max_position_embeddings));
  if (s.rope_type == RopeStretch::kLlama3) {
    HEED_TRY(check("low_freq_factor", s.low_freq_factor, 0));
    return check("high_freq_factor", s.high_freq_factor, s.low_freq_factor);
  }
  if (c.rope_theta == 1) return BadRequest("rope_theta", "1", "another number than 1 with yarn");
  HEED_TRY(check("beta_slow", s.beta_slow, 0));
  HEED_TRY(check("beta_fast", s.beta_fast, s.beta_slow));
  return s.attention_factor == 0 ? Status() : check("attention_factor", s.attention_factor, 0);
}

Status CheckRope(ModelConfig* c) {
  if (!std::isfinite(c->rope_theta) || c->rope_theta <= 0) {
    return BadRequest("rope_theta", fmt::format("{}", c->rope_theta), "a finite number above 0");
  }
  HEED_TRY(CheckOptionalSize("rotary_dim", c->rotary_dim));
  HEED_TRY(CheckOptionalSize("rope_first_position", c->rope_first_position));
  const bool whole_head = c->rotary_dim == 0;
  if (whole_head) c->rotary_dim = c->head_dim;
  if (c->position != Position::kRope) return {};
  if (c->rotary_dim > c->head_dim) {
    return BadRequest("rotary_dim", fmt::format("{} at head_dim {}", c->rotary_dim, c->head_dim),
                      "at most head_dim");
  }
  HEED_TRY(CheckRopeScaling(*c));
  if (c->rotary_dim % 2 != 0) {
    return BadRequest(whole_head ? "head_dim" : "rotary_dim", fmt::format("{}", c->rotary_dim),
                      "an even number, for rope turns channels in pairs");
  }
  return {};
}

ModelConfig MinGpt(int64_t n_layer, int64_t n_head, int64_t n_embd) {
  ModelConfig config;
  config.n_layer = n_layer;
  config.n_head = n_head;
  config.n_embd = n_embd;
  config.block_size = 1024;
  config.vocab_size = 50257;
  config.tied = false;
  config.dropout = 0.1;
  return config;
}

ModelConfig NanoGpt(int64_t n_layer, int64_t n_head, int64_t n_embd, int64_t block_size,
                    double dropout) {
  ModelConfig config;
  config.n_layer = n_layer;
  config.n_head = n_head;
  config.n_embd = n_embd;
  config.block_size = block_size;
  config.vocab_size = 65;
  config.bias = false;
  config.dropout = dropout;
  return config;
}

}  // namespace

std::span<const EnumName<ModelKind>> EnumNames(ModelKind) {
  static constexpr EnumName<ModelKind> kNames[] = {
      {ModelKind::kGpt, "gpt"},
      {ModelKind::kAveraged, "averaged"},
      {ModelKind::kBigramEmbedding, "bigram-embedding"},
      {ModelKind::kNgram, "ngram"}};
  return kNames;
}

std::span<const EnumName<Position>> EnumNames(Position) {
  static constexpr EnumName<Position> kNames[] = {{Position::kLearned, "learned"},
                                                  {Position::kSinusoidal, "sinusoidal"},
                                                  {Position::kRope, "rope"},
                                                  {Position::kNone, "none"}};
  return kNames;
}

std::span<const EnumName<RopePairing>> EnumNames(RopePairing) {
  static constexpr EnumName<RopePairing> kNames[] = {{RopePairing::kHalf, "half"},
                                                     {RopePairing::kInterleaved, "interleaved"}};
  return kNames;
}

std::span<const EnumName<NormKind>> EnumNames(NormKind) {
  static constexpr EnumName<NormKind> kNames[] = {{NormKind::kLayerNorm, "layernorm"},
                                                  {NormKind::kRmsNorm, "rmsnorm"}};
  return kNames;
}

std::span<const EnumName<MlpKind>> EnumNames(MlpKind) {
  static constexpr EnumName<MlpKind> kNames[] = {{MlpKind::kGelu, "gelu"},
                                                 {MlpKind::kSwiglu, "swiglu"}};
  return kNames;
}

std::span<const EnumName<Family>> EnumNames(Family) {
  static constexpr EnumName<Family> kNames[] = {
      {Family::kGpt2, "gpt2"}, {Family::kLlama, "llama"}, {Family::kHeed, "heed"}};
  return kNames;
}

std::span<const EnumName<AttentionBias>> EnumNames(AttentionBias) {
  static constexpr EnumName<AttentionBias> kNames[] = {
      {AttentionBias::kNone, "none"}, {AttentionBias::kQkv, "qkv"}, {AttentionBias::kAll, "all"}};
  return kNames;
}

Status ModelConfig::Resolve() {
  HEED_TRY(CheckKind(*this));
  HEED_TRY(CheckSize("n_head", n_head));
  HEED_TRY(CheckSize("n_embd", n_embd));
  HEED_TRY(CheckSize("block_size", block_size));
  HEED_TRY(CheckSize("vocab_size", vocab_size));
  HEED_TRY(CheckHeads(this));
  HEED_TRY(CheckRope(this));
  HEED_TRY(CheckOptionalSize("sliding_window", sliding_window));
  HEED_TRY(CheckOptionalSize("n_inner", n_inner));
  if (n_inner == 0) {
    n_inner = mlp == MlpKind::kGelu ? 4 * n_embd : (8 * n_embd + 95) / 96 * 32;
    HEED_TRY(CheckSize("n_inner", n_inner));
  }
  if (!std::isfinite(norm_eps) || norm_eps < 0) {
    return BadRequest("norm_eps", fmt::format("{}", norm_eps), "a finite number, 0 or above");
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return BadRequest("dropout", fmt::format("{}", dropout), "0 or above and below 1");
  }
  if (CountParameters(*this) > kMostParameters) {
    return BadRequest("n_embd", "sizes that make more than 2^60 parameters", "a smaller model");
  }
  return {};
}

Family ModelConfig::family() const {
  if (model != ModelKind::kGpt) return Family::kHeed;
  const bool rope = position == Position::kRope && rope_pairing == RopePairing::kHalf &&
                    rotary_dim == head_dim && rope_first_position == 0;
  // No model_type has both.
  const bool all_biased_in_window = sliding_window > 0 && attention_bias == AttentionBias::kAll;
  if (norm == NormKind::kRmsNorm && mlp == MlpKind::kSwiglu && rope && !bias &&
      !all_biased_in_window) {
    return Family::kLlama;
  }
  if (norm == NormKind::kLayerNorm && mlp == MlpKind::kGelu && position == Position::kLearned &&
      bias && sliding_window == 0 && n_kv_head == n_head && n_head * head_dim == n_embd) {
    return Family::kGpt2;
  }
  return Family::kHeed;
}

int64_t ParameterCount(const ModelConfig& config) {
  return static_cast<int64_t>(CountParameters(config));
}

std::span<const Preset> Presets() {
  static const std::array kPresets = {
      Preset{"openai-gpt", "minGPT: 12 layers, 12 heads, width 768", MinGpt(12, 12, 768)},
      Preset{"gpt2", "minGPT: 12 layers, 12 heads, width 768 (124M)", MinGpt(12, 12, 768)},
      Preset{"gpt2-medium", "minGPT: 24 layers, 16 heads, width 1024 (355M)", MinGpt(24, 16, 1024)},
      Preset{"gpt2-large", "minGPT: 36 layers, 20 heads, width 1280 (774M)", MinGpt(36, 20, 1280)},
      Preset{"gpt2-xl", "minGPT: 48 layers, 25 heads, width 1600 (1558M)", MinGpt(48, 25, 1600)},
      Preset{"gopher-44m", "minGPT: 8 layers, 16 heads, width 512", MinGpt(8, 16, 512)},
      Preset{"gpt-mini", "minGPT: 6 layers, 6 heads, width 192", MinGpt(6, 6, 192)},
      Preset{"gpt-micro", "minGPT: 4 layers, 4 heads, width 128", MinGpt(4, 4, 128)},
      Preset{"gpt-nano", "minGPT: 3 layers, 3 heads, width 48", MinGpt(3, 3, 48)},
      Preset{"pico", "to print whole: 3 layers, 3 heads, width 6", MinGpt(3, 3, 6)},
      Preset{"femto", "to compute by hand: 1 layer, 1 head, width 2", MinGpt(1, 1, 2)},
      Preset{"shakespeare-cpu", "nanoGPT: 4 layers, 4 heads, width 128, block 64",
             NanoGpt(4, 4, 128, 64, 0.0), 12},
      Preset{"shakespeare", "nanoGPT: 6 layers, 6 heads, width 384, block 256",
             NanoGpt(6, 6, 384, 256, 0.2), 64},
  };
  return kPresets;
}

const Preset* FindPreset(std::string_view name) {
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

}  // namespace heed
