#include "verify/diagnose/model_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/diagnose/attention_faults.h"

namespace heed {
namespace {

constexpr const char* kBlockLine = "x = x + attn(ln_1(x)); x = x + mlp(ln_2(x))";
constexpr const char* kBlockLineCpp = "x += Attention(Norm1(x)); x += Mlp(Norm2(x));";

constexpr FaultKind kFaults[] = {
    {"residual_from_normed", "the branch is added to the normed input, not to the input itself",
     "keep x for the sum and give norm(x) to the branch alone", kBlockLine, kBlockLineCpp,
     "with a branch of zero the block must return x, and returns norm(x)"},
    {"norm_argument_wrong", "the branch is given norm(x) + x", "give it norm(x)", kBlockLine,
     kBlockLineCpp, "with a branch of zero nothing differs; scale x: the branch must not move"},
    {"residual_missing", "a branch replaces x in place of being added to it", "add the branch to x",
     kBlockLine, kBlockLineCpp, "with a branch of zero the block must return x, and returns 0"},
    {"norm_after_branch", "the norm stands behind the sum where the model has it before the branch",
     "norm the branch's input, not the sum", kBlockLine, kBlockLineCpp,
     "the embedding enters the first branch without a norm"},
    {"final_norm_missing", "there is no norm before the head", "apply the final norm",
     "logits = lm_head(ln_f(x))", "Head(FinalNorm(x));",
     "the last hidden state is equal, logits are not and grow with depth"},
    {"head_untied", "the head is not the matrix that the checkpoint means",
     "tie the head to the embedding exactly where the configuration says so",
     "lm_head.weight = wte.weight  # if config.tie_word_embeddings",
     "head.weight = config.tied ? wte : lm_head;",
     "the final hidden state is equal; logits = h E^T?"},
    {"embedding_scale", "embeddings or logits carry a factor sqrt(n_embd)",
     "scale as the checkpoint was trained, GPT-2 and Llama not at all", "x = wte(tokens)",
     "x[c] = wte[token * C + c];", "the ratio of the first hidden state to the embedding"},
    {"position_offset_two", "the position table is read two rows further",
     "read row p for position p; an offset of 2 belongs to tables that store it",
     "x = x + wpe(torch.arange(T))", "x += wpe[p];", "row p of the table against row p + 2"},
    {"position_offset_one", "the position table is read one row further", "number positions from 0",
     "x = x + wpe(torch.arange(T))", "x += wpe[p];", "row p of the table against row p + 1"},
    {"position_missing", "positions are not added to the embedding", "add them",
     "x = wte(tokens) + wpe(torch.arange(T))", "x += wpe[p];",
     "swap the first two tokens: the third's logits must move"},
    {"sinusoidal_layout", "sines stand before cosines where they alternate",
     "put sine and cosine of one frequency side by side",
     "pe[:, 0::2], pe[:, 1::2] = torch.sin(angle), torch.cos(angle)",
     "pe[2 * i] = sin; pe[2 * i + 1] = cos;", "the table at position 1"},
    {"rope_scaling_missing", "rotary positions are stretched otherwise than the model's",
     "stretch positions exactly as rope_scaling says", "angle = position / factor * frequency",
     "angle = position / factor * frequency;", "row 0 is equal; a factor fits all other rows"},
    {"rope_permute_gqa", "key rows are reordered with the number of query heads",
     "reorder k with n_kv_head", "k = permute(k, n_kv_head)", "Permute(k, n_kv_head);",
     "models without groups are equal"},
};

using Fault = Deviation<ModelRecipe>;

class Deviations {
 public:
  Deviations(const ModelConfig& config, const ModelCase& c) : config_(config), case_(c) {}

  std::vector<Fault> List() {
    AddPadding();
    AddNorms();
    AddBlocks();
    AddMlp();
    AddEmbedding();
    AddRope();
    AddAttention();
    AddDecoding();
    return std::move(list_);
  }

 private:
  template <class Change>
  void Add(const char* id, const char* stage, Change change, const char* needs = "",
           std::string detail = "") {
    list_.push_back({id, stage, change, needs, std::move(detail), {}});
  }

  void AddPadding() {
    const char* const kPadded = "logits of rows padded on the left, with attention_mask";
    const char* const kTable = config_.position == Position::kRope ? "" : kPadded;
    Add(
        "left_pad_positions", "pad positions", [](ModelRecipe* r) { r->positions_from_pad = true; },
        kTable);
    if (case_.padded && case_.input.n_decode > 0) {
      Add(
          "left_pad_positions", "pad positions", [](ModelRecipe* r) { r->decode_from_pad = true; },
          "", "behind the cache alone");
    }
    Add(
        "padding_not_masked", "pad mask", [](ModelRecipe* r) { r->pads_hidden = false; }, kPadded);
  }

  void AddNorms() {
    const auto norm = [this](const char* id, auto change, const char* needs = "",
                             const char* detail = "") {
      Add(
          id, id, [change](ModelRecipe* r) { change(&r->norm); }, needs, detail);
    };
    norm("norm_unbiased", [](NormChoice* n) { n->variance = Variance::kSample; });
    norm("norm_eps_outside_sqrt", [](NormChoice* n) { n->place = EpsPlace::kOutside; });
    norm("norm_gain_plus_one", [](NormChoice* n) { n->gain_offset = 1; });
    norm("norm_gain_missing", [](NormChoice* n) { n->gain = false; });
    if (config_.bias) norm("norm_bias_missing", [](NormChoice* n) { n->bias = false; });
    norm("norm_kind", [](NormChoice* n) { n->rms = !n->rms; });
    norm(
        "norm_cast_order", [](NormChoice* n) { n->cast = NormCast::kBeforeGain; }, "",
        "to bf16 before the gain");
    Fault eps{"norm_eps_value", "norm_eps_outside_sqrt", nullptr, "", "", {}};
    eps.fit.grid = {1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2};
    eps.fit.change = [](double value, ModelRecipe* r) { r->norm.eps = value; };
    eps.fit.belongs = [right = config_.norm_eps](double value) {
      return std::abs(value - right) > 5e-3 * right;
    };
    eps.fit.detail = [](double value) { return fmt::format("eps {:.3g}", value); };
    list_.push_back(std::move(eps));
    Add("final_norm_missing", "final norm", [](ModelRecipe* r) { r->final_norm = false; });
  }

  void AddBlocks() {
    const auto residual = [this](const char* id, ResidualChoice choice, const char* detail = "") {
      Add(
          id, "residual", [choice](ModelRecipe* r) { r->residual = choice; }, "", detail);
    };
    residual("residual_from_normed", ResidualChoice::kFromNormed);
    residual("norm_argument_wrong", ResidualChoice::kIntoBranch);
    residual("norm_after_branch", ResidualChoice::kNormAfter);
    residual("residual_missing", ResidualChoice::kNoAttention, "around attention");
    residual("residual_missing", ResidualChoice::kNoMlp, "around the MLP");
  }

  void AddMlp() {
    const auto activation = [this](const char* id, Activation value, const char* detail) {
      Add(
          id, "activation", [value](ModelRecipe* r) { r->activation = value; }, "", detail);
    };
    const auto gate = [this](Gate value, const char* detail) {
      Add(
          "glu_order", "gate", [value](ModelRecipe* r) { r->gate = value; }, "", detail);
    };
    const bool gated = config_.mlp == MlpKind::kSwiglu;
    if (gated) {
      gate(Gate::kUp, "silu(up) gate");
      gate(Gate::kProduct, "silu(gate up)");
      gate(Gate::kUpAlone, "silu(up), no gate");
      gate(Gate::kGateAlone, "silu(gate), no up");
      activation("mlp_activation", Activation::kGeluTanh, "gelu");
      activation("mlp_activation", Activation::kSigmoid, "sigmoid");
    } else {
      activation("gelu_form", Activation::kGeluErf, "erf");
      activation("gelu_form", Activation::kGeluSigmoid, "x sigmoid(1.702 x)");
      activation("gelu_form", Activation::kGeluNoFactor, "the factor x forgotten");
      activation("gelu_form", Activation::kGeluErfNoFactor, "erf, the factor x forgotten");
      activation("mlp_activation", Activation::kSilu, "silu");
    }
    activation("mlp_activation", Activation::kRelu, "relu");
    activation("mlp_activation", Activation::kIdentity, "none");
    AddMatrix("up", &ModelRecipe::turned_up, &ModelRecipe::up_bias);
    if (gated) AddMatrix("gate", &ModelRecipe::turned_gate, &ModelRecipe::gate_bias);
    AddMatrix("down", &ModelRecipe::turned_down, &ModelRecipe::down_bias);
    if (config_.n_inner != config_.n_embd) return;
    Add(
        "linear_transposed", "every mlp weight",
        [](ModelRecipe* r) { r->turned_up = r->turned_gate = r->turned_down = true; }, "",
        "every weight of the MLP");
  }

  void AddMatrix(const char* name, bool ModelRecipe::*turned, bool ModelRecipe::*bias) {
    if (config_.n_inner == config_.n_embd) {
      Add(
          "linear_transposed", name, [turned](ModelRecipe* r) { r->*turned = true; }, "", name);
    }
    if (!config_.bias) return;
    list_.push_back({"mlp_bias_missing",
                     std::string(name) + " bias",
                     [bias](ModelRecipe* r) { r->*bias = false; },
                     "",
                     name,
                     {}});
  }

  void AddEmbedding() {
    const double root = std::sqrt(static_cast<double>(config_.n_embd));
    const auto scale = [&](double embedding, double logits, const char* detail) {
      Add(
          "embedding_scale", "embedding",
          [=](ModelRecipe* r) {
            r->embedding_factor *= embedding;
            r->logit_factor *= logits;
          },
          "", detail);
    };
    scale(root, 1, "the embedding times sqrt(n_embd)");
    scale(root, root, "embedding and logits times sqrt(n_embd)");
    scale(1, root, "logits times sqrt(n_embd)");
    scale(1, 1 / root, "logits by sqrt(n_embd)");
    scale(1 / root, 1, "the embedding by sqrt(n_embd)");
    if (!config_.tied) {
      Add(
          "head_untied", "head", [](ModelRecipe* r) { r->embedding_as_head = true; }, "",
          "the embedding stands for the head");
    }
    const auto table = [this](const char* id, TableChoice choice) {
      Add(id, "table", [choice](ModelRecipe* r) { r->table = choice; });
    };
    if (config_.position != Position::kLearned && config_.position != Position::kSinusoidal) return;
    table("position_offset_two", TableChoice::kOffsetTwo);
    table("position_offset_one", TableChoice::kOffsetOne);
    table("position_missing", TableChoice::kMissing);
    if (config_.position == Position::kSinusoidal) {
      table("sinusoidal_layout", TableChoice::kSinesFirst);
    }
  }

  void AddRope() {
    if (config_.position != Position::kRope) return;
    if (config_.rope_scaling != RopeScaling()) {
      Add("rope_scaling_missing", "rope scale", [](ModelRecipe* r) {
        r->attention.rotate.scaling = r->decode.rotate.scaling = RopeScaling();
      });
    }
    for (const double factor : {2.0, 4.0, 8.0, 16.0, 32.0, 0.5, 0.25, 0.125}) {
      Add(
          "rope_scaling_missing", "rope scale",
          [factor](ModelRecipe* r) {
            for (AttentionRecipe* a : {&r->attention, &r->decode}) {
              a->rotate.q_sense /= factor;
              a->rotate.k_sense /= factor;
            }
          },
          "", fmt::format("positions divided by {}", factor));
    }
    for (const KeyRows rows : {KeyRows::kUndoneByQueryHeads, KeyRows::kDoneByQueryHeads}) {
      Add("rope_permute_gqa", "key rows", [rows](ModelRecipe* r) { r->key_rows = rows; });
    }
  }

  AttentionFacts Facts(int64_t T, int64_t P) const {
    AttentionFacts f;
    f.B = case_.padded ? 1 : case_.input.B;
    f.T = T;
    f.P = P;
    f.S = P + T;
    f.C = config_.n_embd;
    f.H = config_.n_head;
    f.Hkv = config_.n_kv_head;
    f.D = config_.head_dim;
    f.rotary = config_.position == Position::kRope ? config_.rotary_dim : 0;
    f.first = config_.rope_first_position;
    f.theta = config_.rope_theta;
    f.weights = f.layout_stated = f.pairing_stated = true;
    f.fused = config_.family() != Family::kLlama;
    f.window = config_.sliding_window;
    if (config_.qkv_bias()) f.biases |= kQProj | kKProj | kVProj;
    if (config_.attention_proj_bias()) f.biases |= kOProj;
    if (f.H * f.D == f.C) f.square = f.fused ? kOProj : kQProj | kOProj;
    if (f.Hkv * f.D == f.C && !f.fused) f.square |= kKProj | kVProj;
    return f;
  }

  // The catalogue of attention, in every layer alike.
  void AddAttention() {
    const AttentionFacts facts = Facts(case_.input.T, 0);
    for (const AttentionFault& fault : AttentionFaultTable()) {
      const std::string id(fault.kind.id);
      // Whole sequences do not come in pieces.
      if (id == "rope_fragments_joined") continue;
      for (const Variant& variant :
           fault.variants ? fault.variants(facts) : std::vector<Variant>()) {
        list_.push_back({id,
                         id,
                         [change = variant.change](ModelRecipe* r) {
                           change(&r->attention);
                           change(&r->decode);
                         },
                         "",
                         variant.detail,
                         {}});
      }
      for (const FittedFault& fitted :
           fault.fits ? fault.fits(facts) : std::vector<FittedFault>()) {
        AddFit(id, fitted);
      }
    }
  }

  void AddFit(const std::string& id, const FittedFault& fitted) {
    Fault fault{id, id, nullptr, "", "", {}};
    // Every third start will do: the rest is refined.
    for (size_t i = 0; i < fitted.grid.size(); ++i) {
      if (fitted.whole || i % 3 == 0 || i + 1 == fitted.grid.size()) {
        fault.fit.grid.push_back(fitted.grid[i]);
      }
    }
    fault.fit.whole = fitted.whole;
    fault.fit.change = [change = fitted.change](double value, ModelRecipe* r) {
      change(value, &r->attention);
      change(value, &r->decode);
    };
    fault.fit.belongs = fitted.belongs;
    fault.fit.detail = fitted.detail;
    list_.push_back(std::move(fault));
  }

  // What goes wrong behind a cache alone.
  void AddDecoding() {
    const int64_t n = case_.input.n_decode;
    if (n == 0 || n == case_.input.T) return;
    const AttentionFacts facts = Facts(n, case_.input.T - n);
    for (const AttentionFault& fault : AttentionFaultTable()) {
      const std::string id(fault.kind.id);
      // No rotation at all is position 0, which position_restart tells.
      const bool told = id == "position_upper_layers" || id == "rope_missing";
      if (!fault.variants || told || id == "batch_axis_attended") continue;
      for (const Variant& variant : fault.variants(facts)) {
        list_.push_back({id,
                         id + " in decoding",
                         [change = variant.change](ModelRecipe* r) { change(&r->decode); },
                         "",
                         variant.detail,
                         {}});
      }
    }
    Add("position_upper_layers", "upper layers",
        [](ModelRecipe* r) { r->upper_layers_ahead = true; });
    if (config_.position == Position::kRope) return;
    const auto position = [this](const char* id, PositionChoice choice) {
      Add(id, "decoding positions",
          [choice](ModelRecipe* r) { r->decode.rotate.position = choice; });
    };
    position("position_restart", PositionChoice::kRestart);
    position("rope_window_constant", PositionChoice::kChunkConstant);
  }

  const ModelConfig& config_;
  const ModelCase& case_;
  std::vector<Fault> list_;
};

}  // namespace

std::span<const FaultKind> ModelFaults() { return kFaults; }

std::vector<Deviation<ModelRecipe>> ModelDeviations(const ModelConfig& config, const ModelCase& c) {
  return Deviations(config, c).List();
}

}  // namespace heed
