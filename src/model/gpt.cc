#include "model/gpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/buffer.h"
#include "base/parallel.h"
#include "kernels/narrow.h"
#include "model/narrow.h"

namespace heed {
namespace {

// Dropout sites: 0 is the embedding, then three for each block.
uint32_t BlockSite(int64_t layer) { return static_cast<uint32_t>(1 + 3 * layer); }

}  // namespace

Result<std::unique_ptr<Gpt>> Gpt::Outline(ModelConfig config, const Kernels& kernels) {
  HEED_TRY(config.Resolve());
  const double table_bytes =
      static_cast<double>(config.block_size) * sizeof(float) *
      static_cast<double>(config.position == Position::kRope         ? config.rotary_dim
                          : config.position == Position::kSinusoidal ? config.n_embd
                                                                     : 0);
  if (!MemoryHolds(table_bytes)) {
    return BadRequest("memory",
                      fmt::format("{:.1f} MiB of positions that the system does not give",
                                  table_bytes / (1 << 20)),
                      "", "use a smaller block_size");
  }
  std::unique_ptr<Gpt> model(new Gpt(config, kernels));
  model->embedding_ = {config.n_embd, config.vocab_size};
  if (config.family() == Family::kLlama) {
    model->AddLlamaLayers();
  } else {
    model->AddGpt2Layers();
  }
  if (kernels.narrow != nullptr) {
    model->narrow_ = DescribeNarrow(model->config_, model->embedding_, model->blocks_, model->head_,
                                    model->parameters_);
  }
  return model;
}

Result<std::unique_ptr<Gpt>> Gpt::CreateWithoutNumbers(ModelConfig config, const Kernels& kernels) {
  HEED_ASSIGN(std::unique_ptr<Gpt> model, Outline(config, kernels));
  const ModelConfig& c = model->config_;
  if (c.position == Position::kRope) {
    model->rope_ =
        RopeTable(c.block_size, c.rotary_dim, c.rope_theta, c.rope_first_position, c.rope_scaling);
  }
  if (c.position == Position::kSinusoidal) {
    model->embedding_.sinusoidal = SinusoidalTable(c.block_size, c.n_embd);
  }
  return model;
}

Result<std::unique_ptr<Gpt>> Gpt::Create(ModelConfig config, const Kernels& kernels) {
  HEED_ASSIGN(std::unique_ptr<Gpt> model, CreateWithoutNumbers(config, kernels));
  HEED_TRY(model->parameters_.Allocate());
  return model;
}

Block Gpt::NewBlock(int64_t layer) const {
  Block block;
  block.attention = {config_.n_embd, config_.n_head, config_.n_kv_head, config_.head_dim};
  block.attention.averaged = config_.model == ModelKind::kAveraged;
  block.attention.rope = config_.position == Position::kRope ? &rope_ : nullptr;
  block.attention.interleaved = config_.rope_pairing == RopePairing::kInterleaved;
  block.attention.window = config_.sliding_window;
  block.attention.dropout_site = BlockSite(layer);
  block.mlp = {config_.n_embd, config_.n_inner, config_.mlp == MlpKind::kSwiglu};
  block.mlp.dropout_site = BlockSite(layer) + 2;
  return block;
}

// GPT-2's names and [in, out] weights, for its family and for every mix of parts.
void Gpt::AddGpt2Layers() {
  const ModelConfig& c = config_;
  const bool rms = c.norm == NormKind::kRmsNorm;
  const int64_t C = c.n_embd;
  embedding_.wte = parameters_.Add("wte.weight", "V C", {c.vocab_size, C}, Init::kNormal);
  if (c.position == Position::kLearned) {
    embedding_.wpe = parameters_.Add("wpe.weight", "T C", {c.block_size, C}, Init::kNormal);
  }
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, Init init, bool bias) {
    return Linear::Add(&parameters_, name, in, out, /*out_in=*/false, bias, init);
  };
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const std::string h = fmt::format("h.{}.", i);
    Block block = NewBlock(i);
    Attention& a = block.attention;
    block.norm_1 = Norm::Add(&parameters_, h + "ln_1", C, rms, c.norm_eps, c.bias);
    a.qkv = {linear(h + "attn.c_attn", C, a.qkv_width() - a.first_column(), Init::kNormal,
                    c.qkv_bias())};
    a.qkv[0].weight->maps = {a.q_width(), a.kv_width(), a.kv_width()};
    if (a.averaged) a.qkv[0].weight->maps = {a.kv_width()};
    a.proj = linear(h + "attn.c_proj", a.q_width(), C, Init::kResidual, c.attention_proj_bias());
    block.norm_2 = Norm::Add(&parameters_, h + "ln_2", C, rms, c.norm_eps, c.bias);
    block.mlp.fc = linear(h + "mlp.c_fc", C, c.n_inner, Init::kNormal, c.bias);
    if (block.mlp.swiglu) {
      block.mlp.gate = linear(h + "mlp.c_gate", C, c.n_inner, Init::kNormal, c.bias);
    }
    block.mlp.proj = linear(h + "mlp.c_proj", c.n_inner, C, Init::kResidual, c.bias);
    blocks_.push_back(std::move(block));
  }
  head_ = {C, c.vocab_size, {C}};
  if (c.model != ModelKind::kBigramEmbedding) {
    head_.norm = Norm::Add(&parameters_, "ln_f", C, rms, c.norm_eps, c.bias);
  }
  head_.weight = c.tied
                     ? embedding_.wte
                     : parameters_.Add("lm_head.weight", "V C", {c.vocab_size, C}, Init::kNormal);
}

// Llama's names and [out, in] weights.
void Gpt::AddLlamaLayers() {
  const ModelConfig& c = config_;
  const int64_t C = c.n_embd;
  embedding_.wte =
      parameters_.Add("model.embed_tokens.weight", "V C", {c.vocab_size, C}, Init::kNormal);
  const auto linear = [&](const std::string& name, int64_t in, int64_t out,
                          Init init = Init::kNormal, bool bias = false) {
    return Linear::Add(&parameters_, name, in, out, /*out_in=*/true, bias, init);
  };
  const auto norm = [&](const std::string& name) {
    return Norm::Add(&parameters_, name, C, /*rms=*/true, c.norm_eps, /*bias=*/false);
  };
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    Block block = NewBlock(i);
    Attention& a = block.attention;
    block.norm_1 = norm(layer + "input_layernorm");
    a.qkv = {linear(layer + "self_attn.q_proj", C, a.q_width(), Init::kNormal, c.qkv_bias()),
             linear(layer + "self_attn.k_proj", C, a.kv_width(), Init::kNormal, c.qkv_bias()),
             linear(layer + "self_attn.v_proj", C, a.kv_width(), Init::kNormal, c.qkv_bias())};
    a.proj = linear(layer + "self_attn.o_proj", a.q_width(), C, Init::kResidual,
                    c.attention_proj_bias());
    block.norm_2 = norm(layer + "post_attention_layernorm");
    block.mlp.gate = linear(layer + "mlp.gate_proj", C, c.n_inner);
    block.mlp.fc = linear(layer + "mlp.up_proj", C, c.n_inner);
    block.mlp.proj = linear(layer + "mlp.down_proj", c.n_inner, C, Init::kResidual);
    blocks_.push_back(std::move(block));
  }
  head_ = {C, c.vocab_size, norm("model.norm")};
  head_.weight = c.tied
                     ? embedding_.wte
                     : parameters_.Add("lm_head.weight", "V C", {c.vocab_size, C}, Init::kNormal);
}

void Gpt::Initialize(uint64_t seed) {
  constexpr double kDeviation = 0.02;
  constexpr int64_t kPiece = 1 << 16;
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  uint32_t index = 0;
  for (Parameter& p : parameters_.all()) {
    const RandomKey key{seed, 0, kInitStream + index++};
    if (p.init == Init::kZeros || p.init == Init::kOnes) {
      std::fill_n(p.data, p.elements, p.init == Init::kOnes ? 1.0f : 0.0f);
      continue;
    }
    const double deviation = p.init == Init::kResidual ? residual : kDeviation;
    ParallelFor((p.elements + kPiece - 1) / kPiece, [&](int64_t piece) {
      const int64_t end = std::min(p.elements, (piece + 1) * kPiece);
      for (int64_t i = piece * kPiece; i < end; ++i) {
        p.data[i] = static_cast<float>(deviation * RandomNormal(key, static_cast<uint64_t>(i)));
      }
    });
  }
}

Status Gpt::PackWeights(BlockType type) {
  arithmetic_ = type == BlockType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kInt8;
  for (Parameter& p : parameters_.all()) {
    if (!p.factor() || !CanPack(type, p.K())) continue;
    HEED_ASSIGN(std::byte * packed, parameters_.AllocatePacked(&p, type));
    const bool in_out = p.axes == "in out";
    PackFloats(type, p.K(), p.N(), p.values, in_out ? p.N() : 1, in_out ? 1 : p.K(), packed);
  }
  return {};
}

Pass Gpt::NewPass(int64_t B, int64_t T) const {
  Pass pass;
  pass.kernels = kernels_;
  pass.B = B;
  pass.T = T;
  pass.dropout = config_.dropout;
  pass.arithmetic = arithmetic_;
  return pass;
}

const float* Gpt::Forward(const Pass& pass, const int32_t* tokens, Activations* activations,
                          std::span<const KeyValueCache> caches) const {
  embedding_.Forward(pass, tokens, activations->embedded_);
  const float* x = activations->embedded_;
  Pass whole = pass;
  whole.first_output = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].Forward(i + 1 < blocks_.size() ? whole : pass, x, activations->blocks_[i],
                       activations->scratch_, caches.empty() ? nullptr : &caches[i]);
    x = activations->blocks_[i].output;
  }
  return x + pass.first_output * config_.n_embd;
}

void Gpt::Logits(const Pass& pass, const float* x, int64_t rows, Activations* activations,
                 float* logits) const {
  head_.Logits(pass, x, rows, activations->head_, logits);
}

bool Gpt::RunsNarrow(const Pass& pass, const Activations& activations) const {
  // Weights that lie in a file are not in the block that a narrow pass reads.
  return activations.narrow_ != nullptr && parameters_.values() != nullptr && NarrowBatch(pass.B) &&
         pass.update == nullptr && pass.arithmetic == Arithmetic::kF32 && pass.offsets == nullptr &&
         pass.Dropout(0).p == 0;
}

double Gpt::RunNarrow(const Pass& pass, const int32_t* tokens, const int32_t* targets, float scale,
                      float* gradients, const Activations& activations) const {
  NarrowArgs args{pass.B, pass.T, tokens, targets, parameters_.values()};
  args.cos = rope_.cos.data();
  args.sin = rope_.sin.data();
  args.positions = embedding_.sinusoidal.empty() ? nullptr : embedding_.sinusoidal.data();
  args.gradients = gradients;
  args.accumulate = pass.accumulate;
  args.scale = scale;
  args.workspace = activations.narrow_;
  return kernels_->narrow(*narrow_, args);
}

double Gpt::Loss(const Pass& pass, const int32_t* tokens, const int32_t* targets,
                 Activations* activations) const {
  if (RunsNarrow(pass, *activations)) {
    return RunNarrow(pass, tokens, targets, 1, nullptr, *activations);
  }
  return head_.Loss(pass, Forward(pass, tokens, activations), targets, activations->head_);
}

double Gpt::LossAndBackward(const Pass& pass, const int32_t* tokens, const int32_t* targets,
                            float scale, Activations* activations) {
  if (RunsNarrow(pass, *activations)) {
    return RunNarrow(pass, tokens, targets, scale, parameters_.gradients(), *activations);
  }
  const float* x = Forward(pass, tokens, activations);
  float* dx = activations->dx_;
  const double loss = head_.LossAndBackward(pass, x, targets, scale, activations->head_, dx);
  if (pass.update != nullptr && !std::isfinite(loss)) return loss;
  for (size_t i = blocks_.size(); i-- > 0;) {
    const float* input = i == 0 ? activations->embedded_ : activations->blocks_[i - 1].output;
    // The last block's tensors are still there.
    if (activations->plan_.keep() == Keep::kInputs && i + 1 < blocks_.size()) {
      blocks_[i].Forward(pass, input, activations->blocks_[i], activations->scratch_, nullptr);
    }
    blocks_[i].Backward(pass, input, activations->blocks_[i], activations->scratch_, dx);
  }
  // A tied table already holds the head's gradient.
  Parameter* wte = embedding_.wte;
  if (!config_.tied && !pass.accumulate) std::fill_n(wte->grad, wte->elements, 0.0f);
  embedding_.Backward(pass, tokens, dx);
  return loss;
}

Result<std::unique_ptr<Gpt>> WithContext(const Gpt& model, int64_t block_size, double dropout,
                                         uint64_t seed) {
  ModelConfig config = model.config();
  config.block_size = block_size;
  config.dropout = dropout;
  HEED_ASSIGN(std::unique_ptr<Gpt> copy, Gpt::Create(config, model.kernels()));
  copy->Initialize(seed);
  for (const Parameter& from : model.parameters().all()) {
    // The first rows of the positions, and all of everything else.
    Parameter* to = copy->parameters().Find(from.name);
    std::copy_n(from.values, std::min(from.elements, to->elements), to->data);
  }
  return copy;
}

std::unique_ptr<Activations> Activations::Outline(const Gpt& model, int64_t B, int64_t T,
                                                  bool training, bool recompute) {
  std::unique_ptr<Activations> a(new Activations(!training   ? Keep::kNothing
                                                 : recompute ? Keep::kInputs
                                                             : Keep::kAll,
                                                 model.arithmetic() == Arithmetic::kBf16));
  const int64_t C = model.config().n_embd;
  a->plan_.Add(&a->embedded_, "embedded", "residual", "B T C", {B, T, C}, Lifetime::kInput);
  a->blocks_.resize(model.blocks_.size());
  for (size_t i = 0; i < model.blocks_.size(); ++i) {
    model.blocks_[i].PlanState(&a->plan_, fmt::format("h.{}", i), B, T, &a->blocks_[i],
                               &a->scratch_);
  }
  model.head_.PlanState(&a->plan_, B, T, &a->head_);
  if (!training) return a;
  a->plan_.Add(&a->dx_, "dx", "dx", "B T C", {B, T, C}, Lifetime::kScratch);
  if (model.narrow_ && NarrowBatch(B) && NarrowLength(T)) {
    const int64_t floats = NarrowWorkspace(*model.narrow_, T).floats;
    a->plan_.Add(&a->narrow_, "narrow", "narrow", "pieces vectors lanes",
                 {NarrowSplit(*model.narrow_, B, T).pieces, floats / kNarrowLanes, kNarrowLanes},
                 Lifetime::kScratch);
  }
  return a;
}

Result<std::unique_ptr<Activations>> Activations::Create(const Gpt& model, int64_t B, int64_t T,
                                                         bool training, bool recompute) {
  std::unique_ptr<Activations> a = Outline(model, B, T, training, recompute);
  HEED_TRY(a->plan_.Allocate());
  return a;
}

}  // namespace heed
