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

// Llama's rotary settings stand in the object itself, or in rope_parameters (transformers 5).
Status GetRope(const Keys& keys, const std::string& where, ModelConfig* config) {
  const std::string hint = "heed has plain rotary positions, not stretched ones";
  HEED_TRY(keys.Get("rope_theta", &config->rope_theta));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.Find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) return Bad(keys.At(name), Shown(*value), "an object or null");
    const Keys inside(*value, where + ": " + name);
    HEED_TRY(inside.Get("rope_theta", &config->rope_theta));
    HEED_TRY(inside.Only("rope_type", {"default"}, hint));
    HEED_TRY(inside.Only("type", {"default"}, hint));
    HEED_TRY(inside.Only("partial_rotary_factor", {1.0}, "heed's Llama turns whole heads"));
  }
  return keys.Only("partial_rotary_factor", {1.0}, "heed's Llama turns whole heads");
}

Result<ModelConfig> ParseLlama(const Keys& keys, const std::string& where) {
  ModelConfig config;
  config.position = Position::kRope;
  config.norm = NormKind::kRmsNorm;
  config.mlp = MlpKind::kSwiglu;
  config.bias = false;
  config.tied = false;
  config.norm_eps = 1e-6;
  config.block_size = 2048;
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
  HEED_TRY(keys.Only("hidden_act", {"silu", "swish"}, "heed's gated layer is SwiGLU"));
  HEED_TRY(keys.Only("attention_bias", {false}, "heed's Llama has no biases"));
  HEED_TRY(keys.Only("mlp_bias", {false}, "heed's Llama has no biases"));
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
  std::vector<std::string> known = {"model_type",   "architectures", "torch_dtype",         "dtype",
                                    "bos_token_id", "eos_token_id",  "transformers_version"};
  Status status;
  ModelConfig::Fields(config, [&](const char* name, auto& field, const char*) {
    known.push_back(name);
    if (status) status = keys.Get(name, &field);
  });
  HEED_TRY(status);
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

OrderedJson LlamaJson(const ModelConfig& c) {
  OrderedJson json;
  json["architectures"] = {"LlamaForCausalLM"};
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
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
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
  return json;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& where) {
  if (text.size() > kJsonCap) return Bad(where, "more than 16 MiB", "a config.json");
  HEED_ASSIGN(const Json json, ParseJsonObject(text, where));
  const Keys keys(json, where);
  Family family = Family::kHeed;
  if (keys.Find("model_type") == nullptr) {
    return Bad(keys.At("model_type"), "no such key", "gpt2, llama or heed");
  }
  HEED_TRY(keys.Get("model_type", &family));
  HEED_TRY(keys.Only("quantization_config", {}, "convert the weights to F32, F16 or BF16 first"));
  ModelConfig config;
  if (family == Family::kGpt2) {
    HEED_ASSIGN(config, ParseGpt2(keys));
  } else if (family == Family::kLlama) {
    HEED_ASSIGN(config, ParseLlama(keys, where));
  } else {
    HEED_ASSIGN(config, ParseHeed(json, keys, where));
  }
  return config.Resolve().map([&config] { return config; }).map_error([&where](Error error) {
    error.kind = ErrorKind::kFormat;
    error.where = where + ": " + error.where;
    return error;
  });
}

std::string ModelConfigJson(const ModelConfig& config, const SpecialTokens& tokens) {
  const Family family = config.family();
  OrderedJson json;
  json["model_type"] = NameOf(family);
  json.update(family == Family::kGpt2    ? Gpt2Json(config)
              : family == Family::kLlama ? LlamaJson(config)
                                         : HeedJson(config));
  json["torch_dtype"] = "float32";
  json["bos_token_id"] = TokenOrNull(tokens.bos);
  json["eos_token_id"] = TokenOrNull(tokens.eos);
  return json.dump(2) + "\n";
}

}  // namespace heed
