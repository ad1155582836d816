#include "model/config_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/nearest.h"
#include "base/quote.h"

namespace heed {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kJsonCap = 16 << 20;

tl::unexpected<Error> Bad(std::string where, std::string found, std::string expected = "",
                          std::string hint = "") {
  return Fail(ErrorKind::kFormat, std::move(where), std::move(found), std::move(expected),
              std::move(hint));
}

std::string Shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

// Takes the value of one key; null counts as absent. Each Get leaves `out` alone then.
class Keys {
 public:
  Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* Find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Has(const std::string& key) const { return object_.contains(key); }
  std::string At(const std::string& key) const { return where_ + ": " + key; }

  Status Get(const std::string& key, int64_t* out) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    const bool huge = value->is_number_unsigned() &&
                      value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    if (!value->is_number_integer() || huge) {
      return Bad(At(key), Shown(*value), "a whole number below 2^63");
    }
    *out = value->get<int64_t>();
    return {};
  }

  Status Get(const std::string& key, double* out) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_number()) return Bad(At(key), Shown(*value), "a number");
    *out = value->get<double>();
    return {};
  }

  Status Get(const std::string& key, bool* out) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_boolean()) return Bad(At(key), Shown(*value), "true or false");
    *out = value->get<bool>();
    return {};
  }

  template <class E>
  requires std::is_enum_v<E> Status Get(const std::string& key, E* out)
  const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_string() || !ValueOf(value->get<std::string>(), out)) {
      std::vector<std::string_view> names;
      for (const auto& entry : EnumNames(E{})) names.push_back(entry.name);
      return Bad(At(key), Shown(*value), fmt::format("one of {}", fmt::join(names, ", ")));
    }
    return {};
  }

  Status Require(const std::string& key, int64_t* out) const {
    if (Find(key) == nullptr) return Bad(At(key), "no such key", "a whole number");
    return Get(key, out);
  }

  // Refuses any value but those that mean the plain function.
  Status Only(const std::string& key, const std::vector<Json>& known,
              const std::string& hint) const {
    const Json* value = Find(key);
    if (value == nullptr || std::ranges::find(known, *value) != known.end()) return {};
    const std::string expected =
        known.empty() ? "no such key"
                      : Shown(known.front()) + (known.size() > 1 ? " or a synonym" : "");
    return Bad(At(key), Shown(*value), expected, hint);
  }

 private:
  const Json& object_;
  std::string where_;
};

Result<ModelConfig> ParseGpt2(const Keys& keys) {
  ModelConfig config;
  config.dropout = 0.1;
  config.block_size = 1024;
  HEED_TRY(keys.Require("n_layer", &config.n_layer));
  HEED_TRY(keys.Require("n_head", &config.n_head));
  HEED_TRY(keys.Require("n_embd", &config.n_embd));
  HEED_TRY(keys.Require("vocab_size", &config.vocab_size));
  HEED_TRY(keys.Get("n_inner", &config.n_inner));
  HEED_TRY(keys.Get("n_ctx", &config.block_size));
  HEED_TRY(keys.Get("n_positions", &config.block_size));
  HEED_TRY(keys.Get("layer_norm_epsilon", &config.norm_eps));
  HEED_TRY(keys.Get("resid_pdrop", &config.dropout));
  HEED_TRY(keys.Get("tie_word_embeddings", &config.tied));
  HEED_TRY(keys.Only("activation_function", {"gelu_new", "gelu_pytorch_tanh"},
                     "heed's GELU is the tanh form, as GPT-2 was trained with"));
  HEED_TRY(keys.Only("scale_attn_weights", {true}, "heed divides scores by sqrt(head_dim)"));
  HEED_TRY(keys.Only("scale_attn_by_inverse_layer_idx", {false},
                     "heed scales every layer's scores alike"));
  HEED_TRY(keys.Only("reorder_and_upcast_attn", {false}, "heed has no such order of attention"));
  HEED_TRY(keys.Only("add_cross_attention", {false}, "heed runs decoders without an encoder"));
  return config;
}

// The model_type of config.json; llama, mistral and qwen2 are one family.
enum class ModelType { kGpt2, kLlama, kMistral, kQwen2, kHeed };

std::span<const EnumName<ModelType>> EnumNames(ModelType) {
  static constexpr EnumName<ModelType> kNames[] = {{ModelType::kGpt2, "gpt2"},
                                                   {ModelType::kLlama, "llama"},
                                                   {ModelType::kMistral, "mistral"},
                                                   {ModelType::kQwen2, "qwen2"},
                                                   {ModelType::kHeed, "heed"}};
  return kNames;
}

Status GetRopeScaling(const Keys& keys, ModelConfig* config) {
  RopeScaling& s = config->rope_scaling;
  HEED_TRY(keys.Get("type", &s.rope_type));  // older transformers
  HEED_TRY(keys.Get("rope_type", &s.rope_type));
  s.factor = 0;  // refused where it is missing
  HEED_TRY(keys.Get("factor", &s.factor));
  // transformers takes the context of a model that states no other for that of pretraining.
  s.original_max_position_embeddings = config->block_size;
  HEED_TRY(keys.Get("original_max_position_embeddings", &s.original_max_position_embeddings));
  HEED_TRY(keys.Get("low_freq_factor", &s.low_freq_factor));
  HEED_TRY(keys.Get("high_freq_factor", &s.high_freq_factor));
  HEED_TRY(keys.Get("beta_fast", &s.beta_fast));
  HEED_TRY(keys.Get("beta_slow", &s.beta_slow));
  HEED_TRY(keys.Get("attention_factor", &s.attention_factor));
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    HEED_TRY(keys.Only(key, {}, "heed's yarn scales by attention_factor alone"));
  }
  HEED_TRY(keys.Only("truncate", {true}, "heed's yarn rounds its ramp to whole channels"));
  if (s.rope_type == RopeStretch::kNone) s = {};
  return {};
}

// Llama's rotary settings stand in the object itself, or in rope_parameters (transformers 5).
Status GetRope(const Keys& keys, const std::string& where, ModelConfig* config) {
  HEED_TRY(keys.Get("rope_theta", &config->rope_theta));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.Find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) return Bad(keys.At(name), Shown(*value), "an object or null");
    const Keys inside(*value, where + ": " + name);
    HEED_TRY(inside.Get("rope_theta", &config->rope_theta));
    HEED_TRY(GetRopeScaling(inside, config));
    HEED_TRY(inside.Only("partial_rotary_factor", {1.0}, "heed's Llama turns whole heads"));
  }
  return keys.Only("partial_rotary_factor", {1.0}, "heed's Llama turns whole heads");
}

// Of Mistral, in all layers; of Qwen2, in the layers from max_window_layers on, where it is used.
Status GetWindow(const Keys& keys, ModelType type, ModelConfig* config) {
  int64_t first_layer = type == ModelType::kQwen2 ? 28 : 0;
  bool used = type == ModelType::kMistral;
  HEED_TRY(keys.Get("use_sliding_window", &used));
  HEED_TRY(keys.Get("max_window_layers", &first_layer));
  if (!used || first_layer >= config->n_layer) return {};
  config->sliding_window = keys.Has("sliding_window") ? 0 : 4096;
  HEED_TRY(keys.Get("sliding_window", &config->sliding_window));
  if (first_layer > 0) {
    return Bad(keys.At("max_window_layers"), fmt::format("{}", first_layer),
               fmt::format("0, or at least the {} layers", config->n_layer),
               "heed gives all layers one window");
  }
  return {};
}

Result<ModelConfig> ParseLlama(const Keys& keys, ModelType type, const std::string& where) {
  ModelConfig config;
  config.position = Position::kRope;
  config.norm = NormKind::kRmsNorm;
  config.mlp = MlpKind::kSwiglu;
  config.bias = false;
  config.tied = false;
  config.norm_eps = 1e-6;
  config.block_size = type == ModelType::kLlama ? 2048 : type == ModelType::kQwen2 ? 32768 : 131072;
  if (type == ModelType::kMistral) config.n_kv_head = 8;
  HEED_TRY(keys.Require("num_hidden_layers", &config.n_layer));
  HEED_TRY(keys.Require("num_attention_heads", &config.n_head));
  HEED_TRY(keys.Require("hidden_size", &config.n_embd));
  HEED_TRY(keys.Require("intermediate_size", &config.n_inner));
  HEED_TRY(keys.Require("vocab_size", &config.vocab_size));
  HEED_TRY(keys.Get("num_key_value_heads", &config.n_kv_head));
  HEED_TRY(keys.Get("head_dim", &config.head_dim));
  HEED_TRY(keys.Get("max_position_embeddings", &config.block_size));
  HEED_TRY(keys.Get("rms_norm_eps", &config.norm_eps));
  HEED_TRY(keys.Get("attention_dropout", &config.dropout));
  HEED_TRY(keys.Get("tie_word_embeddings", &config.tied));
  HEED_TRY(GetRope(keys, where, &config));
  HEED_TRY(GetWindow(keys, type, &config));
  bool biased = false;
  HEED_TRY(keys.Get("attention_bias", &biased));
  config.attention_bias = type == ModelType::kQwen2 ? AttentionBias::kQkv
                          : biased                  ? AttentionBias::kAll
                                                    : AttentionBias::kNone;
  HEED_TRY(keys.Only("hidden_act", {"silu", "swish"}, "heed's gated layer is SwiGLU"));
  HEED_TRY(keys.Only("mlp_bias", {false}, "heed's Llama has no biases in its gated layer"));
  return config;
}

// The keys are the names of ModelConfig's fields.
Result<ModelConfig> ParseHeed(const Json& json, const Keys& keys, const std::string& where) {
  ModelConfig config;
  HEED_TRY(keys.Get("model", &config.model));
  if (config.model == ModelKind::kNgram) {
    return Bad(keys.At("model"), "ngram", "a model with layers",
               "an n-gram model is counts: heed eval, generate, info, plot and compare know it");
  }
  HEED_TRY(keys.Require("n_layer", &config.n_layer));
  HEED_TRY(keys.Require("n_head", &config.n_head));
  HEED_TRY(keys.Require("n_embd", &config.n_embd));
  HEED_TRY(keys.Require("block_size", &config.block_size));
  HEED_TRY(keys.Require("vocab_size", &config.vocab_size));
  std::vector<std::string> known = {
      "model_type",   "architectures", "torch_dtype",          "dtype",
      "bos_token_id", "eos_token_id",  "transformers_version", "rope_scaling"};
  Status status;
  ModelConfig::Fields(config, [&](const char* name, auto& field, const char*) {
    known.push_back(name);
    if (status) status = keys.Get(name, &field);
  });
  HEED_TRY(status);
  HEED_TRY(GetRope(keys, where, &config));
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string nearest = NearestName(key, known);
    return Bad(where, "the unknown key " + Quoted(key), "the keys of heed's config.json",
               nearest.empty() ? "" : "the nearest one is " + nearest);
  }
  return config;
}

OrderedJson TokenOrNull(const std::optional<int64_t>& token) {
  return token ? OrderedJson(*token) : OrderedJson(nullptr);
}

OrderedJson Gpt2Json(const ModelConfig& c) {
  OrderedJson json;
  json["architectures"] = {"GPT2LMHeadModel"};
  json["n_layer"] = c.n_layer;
  json["n_head"] = c.n_head;
  json["n_embd"] = c.n_embd;
  json["n_inner"] = c.n_inner;
  json["n_positions"] = c.block_size;
  json["n_ctx"] = c.block_size;
  json["vocab_size"] = c.vocab_size;
  json["layer_norm_epsilon"] = c.norm_eps;
  json["activation_function"] = "gelu_new";
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[key] = c.dropout;
  json["tie_word_embeddings"] = c.tied;
  return json;
}

OrderedJson RopeScalingJson(const RopeScaling& s) {
  OrderedJson json = {{"rope_type", NameOf(s.rope_type)}, {"factor", s.factor}};
  if (s.rope_type == RopeStretch::kLinear) return json;
  json["original_max_position_embeddings"] = s.original_max_position_embeddings;
  if (s.rope_type == RopeStretch::kLlama3) {
    json["low_freq_factor"] = s.low_freq_factor;
    json["high_freq_factor"] = s.high_freq_factor;
    return json;
  }
  json["beta_fast"] = s.beta_fast;
  json["beta_slow"] = s.beta_slow;
  if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
  return json;
}

ModelType TypeOf(const ModelConfig& c) {
  const Family family = c.family();
  if (family != Family::kLlama) {
    return family == Family::kGpt2 ? ModelType::kGpt2 : ModelType::kHeed;
  }
  if (c.attention_bias == AttentionBias::kQkv) return ModelType::kQwen2;
  return c.sliding_window > 0 ? ModelType::kMistral : ModelType::kLlama;
}

OrderedJson LlamaJson(const ModelConfig& c, ModelType type) {
  OrderedJson json;
  json["architectures"] = {type == ModelType::kMistral ? "MistralForCausalLM"
                           : type == ModelType::kQwen2 ? "Qwen2ForCausalLM"
                                                       : "LlamaForCausalLM"};
  json["num_hidden_layers"] = c.n_layer;
  json["num_attention_heads"] = c.n_head;
  json["num_key_value_heads"] = c.n_kv_head;
  json["hidden_size"] = c.n_embd;
  json["intermediate_size"] = c.n_inner;
  json["head_dim"] = c.head_dim;
  json["max_position_embeddings"] = c.block_size;
  json["vocab_size"] = c.vocab_size;
  json["rms_norm_eps"] = c.norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["hidden_act"] = "silu";
  if (type == ModelType::kLlama) {
    json["attention_bias"] = c.attention_bias == AttentionBias::kAll;
    json["mlp_bias"] = false;
  } else {
    json["sliding_window"] = c.sliding_window > 0 ? OrderedJson(c.sliding_window) : nullptr;
  }
  if (type == ModelType::kQwen2) {
    json["use_sliding_window"] = c.sliding_window > 0;
    json["max_window_layers"] = c.sliding_window > 0 ? 0 : c.n_layer;
  }
  json["attention_dropout"] = c.dropout;
  json["tie_word_embeddings"] = c.tied;
  return json;
}

OrderedJson HeedJson(const ModelConfig& c) {
  OrderedJson json;
  ModelConfig::Fields(c, [&json](const char* name, const auto& field, const char*) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(field)>>) {
      json[name] = NameOf(field);
    } else {
      json[name] = field;
    }
  });
  // Left out where they say nothing: other readers know the documented keys alone.
  if (c.model == ModelKind::kGpt) json.erase("model");
  if (c.head_dim * c.n_head == c.n_embd) json.erase("head_dim");
  if (c.rotary_dim == c.head_dim) json.erase("rotary_dim");
  if (c.rope_first_position == 0) json.erase("rope_first_position");
  if (c.sliding_window == 0) json.erase("sliding_window");
  if (c.attention_bias == AttentionBias::kNone) json.erase("attention_bias");
  return json;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& where) {
  if (text.size() > kJsonCap) return Bad(where, "more than 16 MiB", "a config.json");
  HEED_ASSIGN(const Json json, ParseJsonObject(text, where));
  const Keys keys(json, where);
  ModelType type = ModelType::kHeed;
  if (keys.Find("model_type") == nullptr) {
    return Bad(keys.At("model_type"), "no such key", "gpt2, llama, mistral, qwen2 or heed");
  }
  HEED_TRY(keys.Get("model_type", &type));
  HEED_TRY(keys.Only("quantization_config", {}, "convert the weights to F32, F16 or BF16 first"));
  ModelConfig config;
  if (type == ModelType::kGpt2) {
    HEED_ASSIGN(config, ParseGpt2(keys));
  } else if (type == ModelType::kHeed) {
    HEED_ASSIGN(config, ParseHeed(json, keys, where));
  } else {
    HEED_ASSIGN(config, ParseLlama(keys, type, where));
  }
  return config.Resolve().map([&config] { return config; }).map_error([&where](Error error) {
    error.kind = ErrorKind::kFormat;
    error.where = where + ": " + error.where;
    return error;
  });
}

std::string ModelConfigJson(const ModelConfig& config, const SpecialTokens& tokens, DType dtype) {
  const ModelType type = TypeOf(config);
  OrderedJson json;
  json["model_type"] = NameOf(type);
  json.update(type == ModelType::kGpt2   ? Gpt2Json(config)
              : type == ModelType::kHeed ? HeedJson(config)
                                         : LlamaJson(config, type));
  if (config.rope_scaling.rope_type != RopeStretch::kNone) {
    json["rope_scaling"] = RopeScalingJson(config.rope_scaling);
  }
  json["torch_dtype"] = dtype == DType::kF16    ? "float16"
                        : dtype == DType::kBF16 ? "bfloat16"
                                                : "float32";
  json["bos_token_id"] = TokenOrNull(tokens.bos);
  json["eos_token_id"] = TokenOrNull(tokens.eos);
  return json.dump(2) + "\n";
}

}  // namespace heed
