#include "model/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace heed {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

// `base` with `changes` merged into it; a null there removes the key (RFC 7396).
std::string With(Json base, const Json& changes) {
  base.merge_patch(changes);
  return base.dump();
}

const Json kGpt2 = {
    {"model_type", "gpt2"}, {"n_layer", 2}, {"n_head", 3}, {"n_embd", 12}, {"vocab_size", 11}};
const Json kLlama = {{"model_type", "llama"}, {"num_hidden_layers", 2},  {"num_attention_heads", 4},
                     {"hidden_size", 16},     {"intermediate_size", 24}, {"vocab_size", 11}};
const Json kHeed = {{"model_type", "heed"}, {"n_layer", 2},    {"n_head", 4},
                    {"n_embd", 16},         {"block_size", 9}, {"vocab_size", 11}};

ModelConfig Parsed(const std::string& text) {
  const auto config = ParseModelConfig(text, "config.json");
  EXPECT_TRUE(config) << config.error().Message();
  return config.value_or(ModelConfig());
}

std::string Refusal(const std::string& text) {
  const auto config = ParseModelConfig(text, "config.json");
  if (config) return "accepted";
  EXPECT_EQ(config.error().kind, ErrorKind::kFormat);
  return config.error().Message();
}

// openai-community/gpt2's config.json.
TEST(ConfigJson, ReadsGpt2AsPublished) {
  const ModelConfig config = Parsed(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true}},
    "vocab_size": 50257})");
  ModelConfig want = FindPreset("gpt2")->model;
  want.tied = true;
  ASSERT_TRUE(want.Resolve());
  EXPECT_EQ(config, want);
  EXPECT_EQ(config.family(), Family::kGpt2);
  EXPECT_EQ(ParameterCount(config), 124439808);
}

// meta-llama/Llama-3.1's sizes with transformers 5's rotary key, and without stretched positions.
TEST(ConfigJson, ReadsLlamaAsPublished) {
  const ModelConfig config = Parsed(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "rope_scaling": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 128256})");
  EXPECT_EQ(config.family(), Family::kLlama);
  EXPECT_EQ(config.n_kv_head, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.block_size, 8192);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_EQ(ParameterCount(config), 8030261248);
}

TEST(ConfigJson, FillsInHuggingFacesDefaults) {
  const ModelConfig gpt2 = Parsed(With(kGpt2, Json::object()));
  EXPECT_TRUE(gpt2.tied);
  EXPECT_TRUE(gpt2.bias);
  EXPECT_EQ(gpt2.n_inner, 48);
  EXPECT_EQ(gpt2.norm_eps, 1e-5);
  EXPECT_EQ(gpt2.block_size, 1024);
  EXPECT_EQ(gpt2.dropout, 0.1);
  EXPECT_EQ(Parsed(With(kGpt2, {{"n_ctx", 7}})).block_size, 7);
  EXPECT_EQ(Parsed(With(kGpt2, {{"n_ctx", 7}, {"n_positions", 8}})).block_size, 8);
  EXPECT_EQ(Parsed(R"({"model_type":"gpt2","n_layer":1,"n_head":1,"n_embd":8,"vocab_size":2,)"
                   R"("n_inner":null})")
                .n_inner,
            32);
  const ModelConfig llama = Parsed(With(kLlama, Json::object()));
  EXPECT_FALSE(llama.tied);
  EXPECT_FALSE(llama.bias);
  EXPECT_EQ(llama.n_kv_head, 4);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.block_size, 2048);
  EXPECT_EQ(llama.dropout, 0);
  const ModelConfig heed = Parsed(With(kHeed, Json::object()));
  EXPECT_EQ(heed.n_kv_head, 4);
  EXPECT_EQ(heed.position, Position::kLearned);
}

TEST(ConfigJson, ReadsEveryKeyOfHeed) {
  const ModelConfig config = Parsed(R"({"model_type":"heed","n_layer":3,"n_head":6,"n_kv_head":2,
    "n_embd":24,"n_inner":40,"block_size":9,"vocab_size":11,"position":"rope","rope_theta":500,
    "rope_pairing":"interleaved","norm":"rmsnorm","norm_eps":1e-4,"mlp":"swiglu","bias":true,
    "tied":false,"dropout":0.25,"head_dim":8,"rotary_dim":4,"rope_first_position":1})");
  ModelConfig want;
  want.n_layer = 3;
  want.n_head = 6;
  want.n_kv_head = 2;
  want.n_embd = 24;
  want.n_inner = 40;
  want.block_size = 9;
  want.vocab_size = 11;
  want.position = Position::kRope;
  want.rope_theta = 500;
  want.rope_pairing = RopePairing::kInterleaved;
  want.norm = NormKind::kRmsNorm;
  want.norm_eps = 1e-4;
  want.mlp = MlpKind::kSwiglu;
  want.tied = false;
  want.dropout = 0.25;
  want.head_dim = 8;
  want.rotary_dim = 4;
  want.rope_first_position = 1;
  EXPECT_EQ(config, want);
  EXPECT_EQ(Parsed(ModelConfigJson(config)), config);
}

TEST(ConfigJson, WritesWhatItReads) {
  for (const Preset& preset : Presets()) {
    ModelConfig config = preset.model;
    for (const Position position : {Position::kLearned, Position::kRope, Position::kNone}) {
      for (const NormKind norm : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
        for (const MlpKind mlp : {MlpKind::kGelu, MlpKind::kSwiglu}) {
          for (const bool bias : {true, false}) {
            config = preset.model;
            config.position = position;
            config.norm = norm;
            config.mlp = mlp;
            config.bias = bias;
            config.n_kv_head = 1;
            config.norm_eps = 1.25e-6;
            config.rope_theta = 1234.5;
            ASSERT_TRUE(config.Resolve());
            ModelConfig again = Parsed(ModelConfigJson(config));
            EXPECT_EQ(again.family(), config.family());
            // GPT-2's format has no place for a base that no position uses.
            if (config.family() == Family::kGpt2) again.rope_theta = config.rope_theta;
            EXPECT_EQ(again, config) << ModelConfigJson(config);
          }
        }
      }
    }
  }
}

TEST(ConfigJson, WritesTheKeysThatTransformersReads) {
  ModelConfig config = FindPreset("gpt-nano")->model;
  ASSERT_TRUE(config.Resolve());
  const Json gpt2 = Json::parse(ModelConfigJson(config));
  EXPECT_EQ(gpt2, Json::parse(R"({"model_type":"gpt2","architectures":["GPT2LMHeadModel"],
    "n_layer":3,"n_head":3,"n_embd":48,"n_inner":192,"n_positions":1024,"n_ctx":1024,
    "vocab_size":50257,"layer_norm_epsilon":1e-5,"activation_function":"gelu_new",
    "resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1,"tie_word_embeddings":false,
    "torch_dtype":"float32","bos_token_id":null,"eos_token_id":null})"));
  config = Parsed(With(kLlama, {{"num_key_value_heads", 2}}));
  const Json llama = Json::parse(ModelConfigJson(config, {.bos = 1, .eos = 2}));
  EXPECT_EQ(llama, Json::parse(R"({"model_type":"llama","architectures":["LlamaForCausalLM"],
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"hidden_size":16,
    "intermediate_size":24,"head_dim":4,"max_position_embeddings":2048,"vocab_size":11,
    "rms_norm_eps":1e-6,"rope_theta":10000.0,"hidden_act":"silu","attention_bias":false,
    "mlp_bias":false,"attention_dropout":0.0,"tie_word_embeddings":false,
    "torch_dtype":"float32","bos_token_id":1,"eos_token_id":2})"));
  config = Parsed(With(kHeed, {{"position", "rope"}}));
  const Json heed = Json::parse(ModelConfigJson(config));
  EXPECT_EQ(heed.at("position"), "rope");
  EXPECT_EQ(heed.at("tied"), true);
  EXPECT_FALSE(heed.contains("head_dim"));
  EXPECT_FALSE(heed.contains("rotary_dim"));
  EXPECT_FALSE(heed.contains("rope_first_position"));
}

// The windows as transformers' MistralConfig and Qwen2Config have them.
TEST(ConfigJson, SlidingWindowsAreThoseOfTransformers) {
  const auto window = [](const char* type, Json change) {
    change["model_type"] = type;
    change["num_key_value_heads"] = 4;
    return Parsed(With(kLlama, change)).sliding_window;
  };
  EXPECT_EQ(window("llama", {{"sliding_window", 7}}), 0);
  EXPECT_EQ(window("mistral", {{"sliding_window", 7}}), 7);
  EXPECT_EQ(window("mistral", {{"hidden_act", "silu"}}), 4096);
  EXPECT_EQ(window("qwen2", {{"sliding_window", 7}}), 0);
  EXPECT_EQ(window("qwen2", {{"sliding_window", 7}, {"use_sliding_window", true}}), 0)
      << "only from layer 28 on";
  const Json all = {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 0}};
  EXPECT_EQ(window("qwen2", all), 7);
  Json some = all;
  some["max_window_layers"] = 1;
  some["model_type"] = "qwen2";
  EXPECT_THAT(Refusal(With(kLlama, some)), HasSubstr("max_window_layers: found 1"));
  EXPECT_EQ(Parsed(With(kLlama, {{"model_type", "qwen2"}})).attention_bias, AttentionBias::kQkv);
}

TEST(ConfigJson, RefusesWhatHeedDoesNotHave) {
  const struct {
    Json base, change;
    const char* message;
  } rows[] = {
      {kGpt2, {{"model_type", "bert"}}, "model_type: found \"bert\", expected one of gpt2, llama"},
      {kGpt2, {{"model_type", nullptr}}, "model_type: found no such key, expected gpt2, llama"},
      {kGpt2, {{"model_type", 2}}, "model_type: found 2"},
      {kGpt2, {{"activation_function", "gelu"}}, "heed's GELU is the tanh form"},
      {kGpt2, {{"activation_function", "relu"}}, "activation_function: found \"relu\""},
      {kGpt2, {{"scale_attn_weights", false}}, "scale_attn_weights"},
      {kGpt2, {{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx"},
      {kGpt2, {{"reorder_and_upcast_attn", true}}, "reorder_and_upcast_attn"},
      {kGpt2, {{"add_cross_attention", true}}, "add_cross_attention"},
      {kGpt2, {{"quantization_config", {{"bits", 4}}}}, "convert the weights to F32"},
      {kLlama, {{"hidden_act", "gelu"}}, "hidden_act: found \"gelu\""},
      {kLlama, {{"mlp_bias", true}}, "mlp_bias: found true"},
      {kLlama, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}, "found \"dynamic\""},
      {kLlama, {{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling.factor: found 0"},
      {kLlama, {{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_scaling.factor: found 0"},
      {kLlama,
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 1}}}},
       "rope_scaling.high_freq_factor: found 1"},
      {kLlama,
       {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8}, {"mscale", 1}}}},
       "rope_scaling: mscale"},
      {kLlama, {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "partial_rotary_factor"},
      {kLlama, {{"rope_scaling", 2}}, "rope_scaling: found 2, expected an object"},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(Refusal(With(row.base, row.change)), HasSubstr(row.message));
  }
}

TEST(ConfigJson, RefusesBadValues) {
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_layer", nullptr}})),
              HasSubstr("config.json: n_layer: found no such key"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_layer", "2"}})), HasSubstr("n_layer: found \"2\""));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_layer", 2.5}})), HasSubstr("n_layer: found 2.5"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_layer", -2}})), HasSubstr("n_layer: found -2"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_layer", 18446744073709551615u}})),
              HasSubstr("a whole number below 2^63"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_embd", int64_t{1} << 40}})), HasSubstr("n_embd: found"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"n_head", 5}})), HasSubstr("n_head: found 5 at n_embd 12"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"tie_word_embeddings", 1}})), HasSubstr("true or false"));
  EXPECT_THAT(Refusal(With(kGpt2, {{"layer_norm_epsilon", "x"}})), HasSubstr("a number"));
  EXPECT_THAT(Refusal(With(kLlama, {{"num_key_value_heads", 3}})),
              HasSubstr("n_kv_head: found 3 at n_head 4"));
  EXPECT_THAT(Refusal(With(kHeed, {{"position", "alibi"}})),
              HasSubstr("expected one of learned, sinusoidal, rope, none"));
  EXPECT_THAT(Refusal(With(kHeed, {{"n_kv_heads", 2}})),
              HasSubstr("unknown key \"n_kv_heads\", expected the keys of heed's config.json; the "
                        "nearest one is n_kv_head"));
  EXPECT_THAT(Refusal(With(kHeed, {{"zebra", 2}})), HasSubstr("unknown key \"zebra\""));
  // Hugging Face's own files hold many keys that say nothing about the function.
  Parsed(With(kGpt2, {{"zebra", 2}}));
  Parsed(With(kLlama, {{"zebra", 2}}));
}

TEST(ConfigJson, RefusesBadJson) {
  EXPECT_THAT(Refusal(""), HasSubstr("stops being JSON at byte 1"));
  EXPECT_THAT(Refusal("{\"model_type\":\"gpt2\""), HasSubstr("stops being JSON"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("found array"));
  EXPECT_THAT(Refusal("{\"a\":\"\xff\"}"), HasSubstr("stops being JSON"));
  EXPECT_THAT(Refusal(std::string("{}\0{}", 5)), HasSubstr("zero byte"));
  EXPECT_THAT(Refusal("{\"n_layer\":1e999}"), HasSubstr("beyond every range"));
  EXPECT_THAT(Refusal(R"({"n_layer":2,"n_layer":3})"), HasSubstr("two keys \"n_layer\""));
  EXPECT_THAT(Refusal(R"({"a":{"b":1,"\u0062":3}})"), HasSubstr("two keys \"b\""));
  EXPECT_THAT(Refusal(std::string(1'000'000, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(Refusal("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}"),
              HasSubstr("nested deeper than 32"));
  EXPECT_THAT(Refusal(std::string((16 << 20) + 1, ' ')), HasSubstr("more than 16 MiB"));
}

}  // namespace
}  // namespace heed
