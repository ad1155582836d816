#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>

namespace heed {
namespace {

using testing::HasSubstr;

ModelConfig Resolved(ModelConfig config) {
  const Status status = config.Resolve();
  EXPECT_TRUE(status) << status.error().Message();
  return config;
}

ModelConfig Sized(std::string_view preset, int64_t vocab_size, int64_t block_size) {
  const Preset* found = FindPreset(preset);
  if (found == nullptr) {
    ADD_FAILURE() << "no preset " << preset;
    return {};
  }
  ModelConfig config = found->model;
  config.vocab_size = vocab_size;
  config.block_size = block_size;
  return Resolved(config);
}

// minGPT's own printout leaves its untied head out; the counts are those of its layout.
TEST(LessonRow14, PresetsHaveTheParametersOfMinGpt) {
  const struct {
    const char* name;
    int64_t n_layer, n_head, n_embd, head_dim, body, small_body, small_whole;
  } rows[] = {
      {"openai-gpt", 12, 12, 768, 64, 124439808, 85204224, 85254144},
      {"gpt2", 12, 12, 768, 64, 124439808, 85204224, 85254144},
      {"gpt2-medium", 24, 16, 1024, 64, 354823168, 302509056, 302575616},
      {"gpt2-large", 36, 20, 1280, 64, 774030080, 708637440, 708720640},
      {"gpt2-xl", 48, 25, 1600, 64, 1557611200, 1475870400, 1475974400},
      {"gopher-44m", 8, 16, 512, 32, 51475968, 25318912, 25352192},
      {"gpt-mini", 6, 6, 192, 32, 12515520, 2706624, 2719104},
      {"gpt-micro", 4, 4, 128, 32, 7357312, 818048, 826368},
      {"gpt-nano", 3, 3, 48, 16, 2546400, 94176, 97296},
      {"pico", 3, 3, 6, 2, 309228, 2700, 3090},
      {"femto", 1, 1, 2, 2, 102640, 464, 594},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const ModelConfig large = Resolved(FindPreset(row.name)->model);
    EXPECT_EQ(large.n_layer, row.n_layer);
    EXPECT_EQ(large.n_head, row.n_head);
    EXPECT_EQ(large.n_embd, row.n_embd);
    EXPECT_EQ(large.head_dim, row.head_dim);
    EXPECT_EQ(large.vocab_size, 50257);
    EXPECT_EQ(large.block_size, 1024);
    EXPECT_EQ(large.dropout, 0.1);
    EXPECT_TRUE(large.bias);
    EXPECT_FALSE(large.tied);
    EXPECT_EQ(large.family(), Family::kGpt2);
    EXPECT_EQ(ParameterCount(large) - 50257 * large.n_embd, row.body);
    ModelConfig small = Sized(row.name, 65, 128);
    EXPECT_EQ(ParameterCount(small), row.small_whole);
    small.tied = true;
    EXPECT_EQ(ParameterCount(small), row.small_body);
  }
}

TEST(LessonRow13, TheBlockIsGpt2s) {
  const ModelConfig c = Resolved(FindPreset("gpt2")->model);
  EXPECT_EQ(c.norm, NormKind::kLayerNorm);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.mlp, MlpKind::kGelu);
  EXPECT_EQ(c.n_inner, 4 * c.n_embd);
}

TEST(LessonRow15, FemtoAndPicoHaveHeadsOfWidthTwo) {
  const std::tuple<const char*, int64_t, int64_t, int64_t> rows[] = {{"femto", 1, 1, 2},
                                                                     {"pico", 3, 3, 6}};
  for (const auto& [name, n_head, n_layer, n_embd] : rows) {
    const ModelConfig c = Resolved(FindPreset(name)->model);
    EXPECT_EQ(c.n_head, n_head);
    EXPECT_EQ(c.n_layer, n_layer);
    EXPECT_EQ(c.n_embd, n_embd);
    EXPECT_EQ(c.head_dim, 2);
  }
}

TEST(Presets, HaveNanoGptsShakespeare) {
  const Preset& small = *FindPreset("shakespeare-cpu");
  EXPECT_EQ(small.batch_size, 12);
  EXPECT_EQ(small.model.dropout, 0);
  const Preset& large = *FindPreset("shakespeare");
  EXPECT_EQ(large.batch_size, 64);
  EXPECT_EQ(large.model.block_size, 256);
  EXPECT_EQ(large.model.dropout, 0.2);
  for (const Preset* preset : {&small, &large}) {
    EXPECT_TRUE(preset->model.tied);
    EXPECT_FALSE(preset->model.bias);
    EXPECT_EQ(Resolved(preset->model).family(), Family::kHeed);
  }
  // nanoGPT prints "number of parameters: 10.65M" for its character model (without wpe: 10,646,784)
  // and 0.80M for the small one.
  const ModelConfig c = Resolved(large.model);
  EXPECT_EQ(ParameterCount(c) - c.block_size * c.n_embd, 10646784);
  const ModelConfig s = Resolved(small.model);
  EXPECT_NEAR(static_cast<double>(ParameterCount(s) - s.block_size * s.n_embd) / 1e6, 0.80, 0.005);
  EXPECT_EQ(FindPreset("gpt3"), nullptr);
}

TEST(ModelConfig, ResolvesItsDefaults) {
  ModelConfig config;
  config.vocab_size = 11;
  config.n_embd = 128;
  config.n_head = 4;
  const ModelConfig gelu = Resolved(config);
  EXPECT_EQ(gelu.n_kv_head, 4);
  EXPECT_EQ(gelu.head_dim, 32);
  EXPECT_EQ(gelu.rotary_dim, 32);
  EXPECT_EQ(gelu.n_inner, 512);
  config.mlp = MlpKind::kSwiglu;
  EXPECT_EQ(Resolved(config).n_inner, 352);  // 8/3 · 128 = 341.3
  config.n_embd = 96;
  EXPECT_EQ(Resolved(config).n_inner, 256);  // 8/3 · 96, a multiple of 32
  EXPECT_EQ(Resolved(Resolved(config)), Resolved(config));
}

// As published: Llama 2 7B has 6,738,415,616 parameters, Llama 3 8B 8,030,261,248.
TEST(ModelConfig, CountsTheParametersOfLlamas) {
  ModelConfig config;
  config.position = Position::kRope;
  config.norm = NormKind::kRmsNorm;
  config.mlp = MlpKind::kSwiglu;
  config.bias = config.tied = false;
  config.n_layer = 32;
  config.n_head = 32;
  config.n_embd = 4096;
  config.n_inner = 11008;
  config.vocab_size = 32000;
  EXPECT_EQ(ParameterCount(Resolved(config)), 6738415616);
  EXPECT_EQ(Resolved(config).family(), Family::kLlama);
  config.n_kv_head = 8;
  config.n_inner = 14336;
  config.vocab_size = 128256;
  EXPECT_EQ(ParameterCount(Resolved(config)), 8030261248);
}

TEST(ModelConfig, EachMixtureLeavesItsFamily) {
  ModelConfig gpt2 = FindPreset("gpt-nano")->model, llama = gpt2;
  llama.position = Position::kRope;
  llama.norm = NormKind::kRmsNorm;
  llama.mlp = MlpKind::kSwiglu;
  llama.bias = false;
  ASSERT_EQ(Resolved(gpt2).family(), Family::kGpt2);
  ASSERT_EQ(Resolved(llama).family(), Family::kLlama);
  const std::function<void(ModelConfig&)> leave_gpt2[] = {
      [](ModelConfig& c) { c.bias = false; },
      [](ModelConfig& c) { c.n_kv_head = 1; },
      [](ModelConfig& c) { c.head_dim = 8; },
      [](ModelConfig& c) { c.position = Position::kSinusoidal; },
      [](ModelConfig& c) { c.norm = NormKind::kRmsNorm; },
      [](ModelConfig& c) { c.mlp = MlpKind::kSwiglu; },
  };
  const std::function<void(ModelConfig&)> leave_llama[] = {
      [](ModelConfig& c) { c.bias = true; },
      [](ModelConfig& c) { c.position = Position::kNone; },
      [](ModelConfig& c) { c.rope_pairing = RopePairing::kInterleaved; },
      [](ModelConfig& c) { c.rotary_dim = 8; },
      [](ModelConfig& c) { c.rope_first_position = 1; },
      [](ModelConfig& c) { c.norm = NormKind::kLayerNorm; },
      [](ModelConfig& c) { c.mlp = MlpKind::kGelu; },
  };
  for (const auto& change : leave_gpt2) {
    ModelConfig changed = gpt2;
    change(changed);
    EXPECT_EQ(Resolved(changed).family(), Family::kHeed);
  }
  for (const auto& change : leave_llama) {
    ModelConfig changed = llama;
    change(changed);
    EXPECT_EQ(Resolved(changed).family(), Family::kHeed);
  }
  gpt2.tied = !gpt2.tied;
  llama.n_kv_head = 1;
  llama.head_dim = 8;
  EXPECT_EQ(Resolved(gpt2).family(), Family::kGpt2);
  EXPECT_EQ(Resolved(llama).family(), Family::kLlama);
}

TEST(ModelConfig, RefusesWithTheFieldTheValueAndTheRule) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    std::function<void(ModelConfig&)> change;
    const char* message;
  } rows[] = {
      {[](ModelConfig& c) { c.n_layer = 0; }, "n_layer: found 0, expected 1 to 1024"},
      {[](ModelConfig& c) { c.n_head = -1; }, "n_head: found -1"},
      {[](ModelConfig& c) { c.n_embd = 0; }, "n_embd: found 0"},
      {[](ModelConfig& c) { c.n_embd = int64_t{1} << 32; }, "n_embd: found 4294967296"},
      {[](ModelConfig& c) { c.block_size = 0; }, "block_size: found 0"},
      {[](ModelConfig& c) { c.vocab_size = 0; }, "vocab_size: found 0"},
      {[](ModelConfig& c) { c.n_head = 5; }, "n_head: found 5 at n_embd 48, expected a divisor"},
      {[](ModelConfig& c) { c.n_kv_head = 4; }, "n_kv_head: found 4 at n_head 6"},
      {[](ModelConfig& c) { c.n_kv_head = 12; }, "n_kv_head: found 12 at n_head 6"},
      {[](ModelConfig& c) { c.n_kv_head = -6; }, "n_kv_head: found -6"},
      {[](ModelConfig& c) { c.head_dim = -8; }, "head_dim: found -8"},
      {[](ModelConfig& c) { c.head_dim = 7; }, "head_dim: found 7, expected an even number"},
      {[](ModelConfig& c) { c.rotary_dim = 3; }, "rotary_dim: found 3, expected an even number"},
      {[](ModelConfig& c) { c.rotary_dim = 10; }, "rotary_dim: found 10 at head_dim 8"},
      {[](ModelConfig& c) { c.rope_theta = 0; }, "rope_theta: found 0"},
      {[](ModelConfig& c) { c.rope_theta = HUGE_VAL; }, "rope_theta: found inf"},
      {[](ModelConfig& c) { c.rope_theta = kNan; }, "rope_theta: found nan"},
      {[](ModelConfig& c) { c.rope_first_position = -1; }, "rope_first_position: found -1"},
      {[](ModelConfig& c) { c.n_inner = -1; }, "n_inner: found -1"},
      {[](ModelConfig& c) { c.norm_eps = -1e-9; }, "norm_eps: found -1e-09"},
      {[](ModelConfig& c) { c.norm_eps = kNan; }, "norm_eps: found nan"},
      {[](ModelConfig& c) { c.dropout = 1; }, "dropout: found 1, expected 0 or above and below 1"},
      {[](ModelConfig& c) { c.dropout = -0.1; }, "dropout: found -0.1"},
      {[](ModelConfig& c) { c.dropout = kNan; }, "dropout: found nan"},
      {[](ModelConfig& c) {
         c.n_embd = int64_t{1} << 31;
         c.n_head = 1;
       },
       "n_inner"},
      {[](ModelConfig& c) {
         c.n_embd = c.n_inner = c.head_dim = c.n_head = c.vocab_size = c.block_size = int64_t{1}
                                                                                      << 31;
       },
       "2^60 parameters"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.message);
    ModelConfig config;
    config.position = Position::kRope;
    config.n_embd = 48;
    config.n_head = 6;
    config.vocab_size = 11;
    ASSERT_TRUE(ModelConfig(config).Resolve());
    row.change(config);
    const Status status = config.Resolve();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::kRequest);
    EXPECT_THAT(status.error().Message(), HasSubstr(row.message));
  }
}

TEST(LessonRow17, AnyDivisorIsANumberOfKeyValueHeads) {
  for (int64_t n_kv_head = 1; n_kv_head <= 7; ++n_kv_head) {
    ModelConfig config;
    config.n_embd = 48;
    config.n_head = 6;
    config.n_kv_head = n_kv_head;
    config.vocab_size = 11;
    const Status status = config.Resolve();
    EXPECT_EQ(status.has_value(), n_kv_head <= 6 && 6 % n_kv_head == 0) << n_kv_head;
    if (!status) {
      EXPECT_THAT(status.error().Message(), HasSubstr("a divisor of n_head"));
    }
  }
}

TEST(ModelConfig, OddHeadsAreFineWithoutRope) {
  ModelConfig config;
  config.n_embd = 9;
  config.n_head = 3;
  config.vocab_size = 11;
  EXPECT_EQ(Resolved(config).head_dim, 3);
}

}  // namespace
}  // namespace heed
