// What a GPT is made of: the keys of its config.json, the presets, and the rules between sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/fields.h"
#include "base/status.h"
#include "nn/rope.h"

namespace heed {

// What stands in a block. The last three are baselines; an n-gram model (baseline/ngram.h) is made
// of counts and no ModelConfig describes it: the name is here so that it is refused by name.
enum class ModelKind {
  kGpt,
  kAveraged,         // the mean of the values so far in place of attention
  kBigramEmbedding,  // no blocks: logits U v, v the previous token's vector
  kNgram,
};
enum class Position { kLearned, kSinusoidal, kRope, kNone };
enum class RopePairing { kHalf, kInterleaved };
enum class NormKind { kLayerNorm, kRmsNorm };
enum class MlpKind { kGelu, kSwiglu };
// Whose tensor names and layout a model's file has.
enum class Family { kGpt2, kLlama, kHeed };
// Which projections of attention have biases in a model that has none elsewhere.
enum class AttentionBias { kNone, kQkv, kAll };

std::span<const EnumName<ModelKind>> EnumNames(ModelKind);
std::span<const EnumName<Position>> EnumNames(Position);
std::span<const EnumName<RopePairing>> EnumNames(RopePairing);
std::span<const EnumName<NormKind>> EnumNames(NormKind);
std::span<const EnumName<MlpKind>> EnumNames(MlpKind);
std::span<const EnumName<Family>> EnumNames(Family);
std::span<const EnumName<AttentionBias>> EnumNames(AttentionBias);

struct ModelConfig {
  ModelKind model = ModelKind::kGpt;
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_kv_head = 0;  // 0: as many as n_head
  int64_t n_embd = 128;
  int64_t head_dim = 0;  // 0: n_embd / n_head
  int64_t n_inner = 0;   // 0: 4 · n_embd, or 8/3 · n_embd rounded up to 32 for swiglu
  int64_t block_size = 64;
  int64_t vocab_size = 0;
  Position position = Position::kLearned;
  double rope_theta = 10000;
  RopePairing rope_pairing = RopePairing::kHalf;
  int64_t rotary_dim = 0;           // 0: head_dim
  int64_t rope_first_position = 0;  // the number of the first position
  RopeScaling rope_scaling;         // not among the fields: files bring it, no option sets it
  int64_t sliding_window = 0;       // positions that attention looks back on, its own included
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  MlpKind mlp = MlpKind::kGelu;
  bool bias = true;
  AttentionBias attention_bias = AttentionBias::kNone;
  bool tied = true;
  double dropout = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("model", self.model, "a GPT, or a baseline to hold it against");
    visit("n_layer", self.n_layer, "blocks");
    visit("n_head", self.n_head, "query heads");
    visit("n_kv_head", self.n_kv_head, "key/value heads: n_head (MHA), a divisor (GQA) or 1 (MQA)");
    visit("n_embd", self.n_embd, "model width");
    visit("head_dim", self.head_dim, "width of a head; n_embd / n_head when not given");
    visit("n_inner", self.n_inner, "MLP width; 4 n_embd (gelu) or 8/3 n_embd (swiglu)");
    visit("block_size", self.block_size, "context length");
    visit("vocab_size", self.vocab_size, "tokens in the vocabulary");
    visit("position", self.position, "how positions enter");
    visit("rope_theta", self.rope_theta, "base of the rotary angles");
    visit("rope_pairing", self.rope_pairing, "which channels turn together");
    visit("rotary_dim", self.rotary_dim, "rotated channels of a head; head_dim when not given");
    visit("rope_first_position", self.rope_first_position, "number of the first position");
    visit("sliding_window", self.sliding_window,
          "keys that each query sees, itself included; all when not given");
    visit("norm", self.norm, "normalisation");
    visit("norm_eps", self.norm_eps, "added to the variance");
    visit("mlp", self.mlp, "feed-forward layer");
    visit("bias", self.bias, "biases in linear layers and layer norms");
    visit("attention_bias", self.attention_bias,
          "biases of attention's projections when there are no others");
    visit("tied", self.tied, "output head shares the token embedding");
    visit("dropout", self.dropout, "probability of dropping, in training");
  }

  // Fills in the zeros above and checks every rule; the error names the field and the rule.
  Status Resolve();
  // Of resolved settings.
  Family family() const;
  bool qkv_bias() const { return bias || attention_bias != AttentionBias::kNone; }
  bool attention_proj_bias() const { return bias || attention_bias == AttentionBias::kAll; }

  bool operator==(const ModelConfig&) const = default;
};

// Numbers in every parameter of a resolved model; a head that shares the embedding counts once.
int64_t ParameterCount(const ModelConfig& config);

// A named size: minGPT's nine, the teaching sizes femto and pico, nanoGPT's two.
struct Preset {
  std::string_view name;
  std::string_view summary;
  ModelConfig model;
  int64_t batch_size = 0;  // 0: the trainer's own default
};

std::span<const Preset> Presets();
const Preset* FindPreset(std::string_view name);

}  // namespace heed
