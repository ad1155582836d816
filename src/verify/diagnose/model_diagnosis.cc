#include "verify/diagnose/model_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/quote.h"
#include "model/folder.h"
#include "tensor/shape.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/model_replay.h"
#include "verify/diagnose/model_screen.h"
#include "verify/diagnose/replay.h"

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

// What a search reads of a dump.
struct ModelCase {
  ModelInput input;
  std::vector<Observed> theirs;  // in the order of ModelReplay::Run's outputs
  bool padded = false;
  ModelRecipe right;
};

// ------------------------------------------------------------------ taps

// The places of ModelReplay in the order of the computation.
constexpr const char* kPlaces[] = {"resid_pre", "ln_1",    "q",        "k",        "v",
                                   "q_rot",     "k_rot",   "pattern",  "attn_out", "resid_mid",
                                   "ln_2",      "mlp_pre", "mlp_post", "mlp_out",  "resid_post"};

struct Alias {
  const char* name;
  const char* place;
};
// Behind "h.N." or "layers.N."; "" is the block itself.
constexpr Alias kModules[] = {{"", "resid_post"},
                              {"ln_1", "ln_1"},
                              {"input_layernorm", "ln_1"},
                              {"attn", "attn_out"},
                              {"attn.c_proj", "attn_out"},
                              {"self_attn", "attn_out"},
                              {"self_attn.o_proj", "attn_out"},
                              {"self_attn.q_proj", "q"},
                              {"self_attn.k_proj", "k"},
                              {"self_attn.v_proj", "v"},
                              {"ln_2", "ln_2"},
                              {"post_attention_layernorm", "ln_2"},
                              {"mlp.c_fc", "mlp_pre"},
                              {"mlp.up_proj", "mlp_pre"},
                              {"mlp", "mlp_out"},
                              {"mlp.c_proj", "mlp_out"},
                              {"mlp.down_proj", "mlp_out"}};
// Behind "blocks.N.".
constexpr Alias kHooks[] = {{"hook_resid_pre", "resid_pre"},
                            {"hook_resid_mid", "resid_mid"},
                            {"hook_resid_post", "resid_post"},
                            {"hook_attn_out", "attn_out"},
                            {"hook_mlp_out", "mlp_out"},
                            {"ln1.hook_normalized", "ln_1"},
                            {"ln2.hook_normalized", "ln_2"},
                            {"attn.hook_q", "q"},
                            {"attn.hook_k", "k"},
                            {"attn.hook_v", "v"},
                            {"attn.hook_rot_q", "q_rot"},
                            {"attn.hook_rot_k", "k_rot"},
                            {"attn.hook_pattern", "pattern"},
                            {"mlp.hook_post", "mlp_post"}};

struct Place {
  const char* kind = nullptr;
  int64_t layer = -1;

  std::string Name() const { return layer < 0 ? kind : fmt::format("{}.{}", kind, layer); }
  // In the order of the computation.
  std::pair<int64_t, int64_t> Order() const {
    if (layer < 0) return {std::string_view(kind) == "embed" ? -1 : INT64_MAX, 0};
    const auto at = std::ranges::find(kPlaces, std::string_view(kind),
                                      [](const char* name) { return std::string_view(name); });
    return {layer, at - std::begin(kPlaces)};
  }
};

bool DropPrefix(std::string_view prefix, std::string_view* name) {
  if (!name->starts_with(prefix)) return false;
  name->remove_prefix(prefix.size());
  return true;
}

// "12.rest" -> 12 and "rest"; nothing when it does not begin so.
std::optional<int64_t> TakeLayer(std::string_view* name) {
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name->data(), name->data() + name->size(), layer);
  if (error != std::errc() || layer < 0) return std::nullopt;
  name->remove_prefix(end - name->data());
  if (!name->empty() && !DropPrefix(".", name)) return std::nullopt;
  return layer;
}

std::optional<Place> InLayer(std::span<const Alias> aliases, std::string_view name,
                             int64_t n_layer) {
  const std::optional<int64_t> layer = TakeLayer(&name);
  if (!layer || *layer >= n_layer) return std::nullopt;
  for (const Alias& alias : aliases) {
    if (name == alias.name) return Place{alias.place, *layer};
  }
  return std::nullopt;
}

// The place that somebody's name for an activation means.
std::optional<Place> PlaceOf(std::string_view name, const ModelConfig& config) {
  if (DropPrefix("blocks.", &name)) {
    const auto place = InLayer(kHooks, name, config.n_layer);
    if (place || config.mlp == MlpKind::kSwiglu || !name.ends_with(".mlp.hook_pre")) return place;
    return Place{"mlp_pre", *TakeLayer(&name)};
  }
  DropPrefix("transformer.", &name);
  DropPrefix("model.", &name);
  if (name == "ln_f" || name == "norm" || name == "ln_final.hook_normalized") return Place{"ln_f"};
  if (name == "drop") return Place{"embed"};
  if (DropPrefix("hidden_states.", &name)) {
    const std::optional<int64_t> layer = TakeLayer(&name);
    if (!layer || *layer > config.n_layer) return std::nullopt;
    return *layer == config.n_layer ? Place{"ln_f"} : Place{"resid_pre", *layer};
  }
  if (!DropPrefix("h.", &name) && !DropPrefix("layers.", &name)) return std::nullopt;
  return InLayer(kModules, name, config.n_layer);
}

// The shape of a tap; heads may also be joined, [B, T, H·D].
std::vector<int64_t> TapShape(const Place& place, const ModelConfig& c, int64_t B, int64_t T) {
  const std::string_view kind = place.kind;
  if (kind == "pattern") return {B, c.n_head, T, T};
  if (kind == "q" || kind == "q_rot") return {B, T, c.n_head, c.head_dim};
  if (kind == "k" || kind == "v" || kind == "k_rot") return {B, T, c.n_kv_head, c.head_dim};
  if (kind == "mlp_pre" || kind == "mlp_post") return {B, T, c.n_inner};
  return {B, T, c.n_embd};
}

// ------------------------------------------------------------------ reading

class CaseReader {
 public:
  CaseReader(Dump* dump, const ModelConfig& config, ModelCase* c)
      : dump_(*dump), config_(config), case_(*c) {}

  Status Read() {
    HEED_TRY(ReadArrangement());
    HEED_TRY(ReadTokens());
    HEED_TRY(ReadMask());
    HEED_TRY(ReadTaps());
    const ModelInput& in = case_.input;
    HEED_ASSIGN(Observed logits, dump_.Floats("logits", {in.B, in.T, config_.vocab_size},
                                              "[B, T, vocab_size]", /*any=*/true));
    ClearPadding(&logits, /*blocks=*/1, /*keys=*/false);
    case_.theirs.push_back(std::move(logits));
    return ReadDecode();
  }

 private:
  // What the folder's settings cannot say of the model.
  Status ReadArrangement() {
    ModelRecipe& right = case_.right = RightRecipe(config_);
    HEED_ASSIGN(const auto norm, dump_.Setting<std::string>("norm_position"));
    if (norm && *norm != "pre" && *norm != "post") {
      return BadRequest(dump_.where() + ": norm_position", Quoted(*norm), "pre or post");
    }
    if (norm == "post") right.residual = ResidualChoice::kNormAfter;
    for (const auto& [name, factor] : {std::pair("embedding_multiplier", &right.embedding_factor),
                                       std::pair("logit_scale", &right.logit_factor)}) {
      HEED_ASSIGN(const auto stated, dump_.Setting<double>(name));
      if (stated && !(*stated > 0)) {
        return BadRequest(dump_.where() + ": " + name, fmt::format("{}", *stated), "above 0");
      }
      *factor = stated.value_or(1);
    }
    return {};
  }

  Status ReadTokens() {
    ModelInput& in = case_.input;
    HEED_ASSIGN(in.tokens, dump_.Integers("tokens", 0, config_.vocab_size - 1));
    const std::vector<int64_t>& shape = dump_.file().Find("tokens")->shape;
    if (shape.size() != 2 || in.tokens.empty()) return dump_.ShapeError("tokens", "[B, T]");
    in.B = shape[0];
    in.T = shape[1];
    if (in.T <= config_.block_size) return {};
    return dump_.ShapeError("tokens",
                            fmt::format("at most block_size = {} positions", config_.block_size));
  }

  Status ReadMask() {
    ModelInput& in = case_.input;
    in.first.assign(in.B, 0);
    in.count.assign(in.B, in.T);
    if (!dump_.Has("attention_mask")) return {};
    HEED_ASSIGN(const std::vector<int64_t> mask, dump_.Integers("attention_mask", 0, 1));
    if (dump_.file().Find("attention_mask")->shape != std::vector<int64_t>{in.B, in.T}) {
      return dump_.ShapeError("attention_mask", fmt::format("[B, T] = [{}, {}]", in.B, in.T));
    }
    for (int64_t b = 0; b < in.B; ++b) {
      const auto row = mask.begin() + b * in.T, end = row + in.T;
      const auto first = std::find(row, end, 1), last = std::find(first, end, 0);
      if (first == end || std::find(last, end, 1) != end) {
        return Fail(ErrorKind::kFormat, dump_.where() + ": tensor \"attention_mask\"",
                    fmt::format("row {} without tokens, or in pieces", b),
                    "the ones of a row side by side");
      }
      in.first[b] = first - row;
      in.count[b] = last - first;
      case_.padded |= in.count[b] < in.T;
    }
    return {};
  }

  // Nobody cares what a model says at padding: rows of [B, blocks, T, ..], and of a pattern its
  // keys.
  void ClearPadding(Observed* tensor, int64_t blocks, bool keys) const {
    const ModelInput& in = case_.input;
    const auto size = static_cast<int64_t>(tensor->values.size());
    const int64_t width = size / (in.B * blocks * in.T);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t b = i / (blocks * in.T * width);
      const auto is_token = [&](int64_t t) {
        return t >= in.first[b] && t < in.first[b] + in.count[b];
      };
      if (is_token(i / width % in.T) && (!keys || is_token(i % width))) continue;
      tensor->values[i] = 0;
    }
  }

  Status ReadTaps() {
    std::vector<std::pair<Place, std::string>> found;
    for (const TensorEntry& entry : dump_.file().tensors()) {
      if (const auto place = PlaceOf(entry.name, config_)) found.emplace_back(*place, entry.name);
    }
    std::ranges::stable_sort(
        found, [](const auto& a, const auto& b) { return a.first.Order() < b.first.Order(); });
    for (const auto& [place, name] : found) {
      HEED_ASSIGN(Observed tap, dump_.Floats(name, /*any=*/true));
      const std::vector<int64_t> shape = TapShape(place, config_, case_.input.B, case_.input.T);
      std::vector<int64_t> joined = shape;
      if (joined.size() == 4 && std::string_view(place.kind) != "pattern") {
        joined = {shape[0], shape[1], shape[2] * shape[3]};
      }
      if (tap.shape != shape && tap.shape != joined) {
        return dump_.ShapeError(name, ShapeText(shape));
      }
      const bool keys = std::string_view(place.kind) == "pattern";
      ClearPadding(&tap, keys ? config_.n_head : 1, keys);
      case_.input.taps.push_back(place.Name());
      case_.theirs.push_back(std::move(tap));
    }
    return {};
  }

  Status ReadDecode() {
    if (!dump_.Has("decode_logits")) return {};
    ModelInput& in = case_.input;
    HEED_ASSIGN(Observed decoded, dump_.Floats("decode_logits", /*any=*/true));
    const bool fits = decoded.shape.size() == 3 && decoded.shape[0] == in.B &&
                      decoded.shape[1] <= *std::ranges::min_element(in.count) &&
                      decoded.shape[2] == config_.vocab_size;
    if (!fits) {
      return dump_.ShapeError("decode_logits", fmt::format("[{}, n, {}] of the last n positions",
                                                           in.B, config_.vocab_size));
    }
    in.n_decode = decoded.shape[1];
    case_.theirs.push_back(std::move(decoded));
    return {};
  }

  Dump& dump_;
  const ModelConfig& config_;
  ModelCase& case_;
};

// ------------------------------------------------------------------ faults

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

// How many single faults may be paired with all others: those that take some ten seconds.
size_t Partners(const Gpt& model, const ModelCase& c, size_t faults) {
  constexpr double kBudget = 4e10;  // multiply-adds
  constexpr double kMost = 40;
  const double rows = static_cast<double>(c.input.B * c.input.T) * (c.input.n_decode > 0 ? 3 : 1);
  const double replay = rows * static_cast<double>(model.parameters().elements());
  return static_cast<size_t>(
      std::clamp(kBudget / (replay * static_cast<double>(faults)), 1.0, kMost));
}

std::vector<Reading<ModelRecipe>> Readings(const ModelCase& c) {
  std::vector<Reading<ModelRecipe>> readings = {{{}, c.right}};
  if (c.input.n_decode <= 1) return readings;
  readings[0].names["decode_logits"] = "one chunk";
  readings.push_back(readings[0]);
  readings[1].names["decode_logits"] = "one position at a time";
  readings[1].choices.decode_in_steps = true;
  return readings;
}

// How far their logits [rows, V] lie from every product of the hidden states [rows, C] with some
// head: by Gram-Schmidt, what is left of each column of the logits behind the columns of the
// states. Infinite where there are too few rows for this to say anything: of any numbers at all,
// C of them fit as many rows, and sqrt(1 - C / rows) is left of more.
double ResidualOfAnyHead(std::vector<double> hidden, std::vector<double> logits, int64_t rows,
                         double floor) {
  const auto C = static_cast<int64_t>(hidden.size()) / rows;
  const auto V = static_cast<int64_t>(logits.size()) / rows;
  constexpr int64_t kSpareRows = 4;
  const double of_anything = std::sqrt(1 - static_cast<double>(C) / static_cast<double>(rows));
  if (rows < C + kSpareRows || !(of_anything > 20 * floor)) {
    return std::numeric_limits<double>::infinity();
  }
  double before = 0, after = 0;
  for (const double z : logits) before += z * z;
  // Takes the part along hidden's column c out of column j of m [rows, n].
  const auto remove = [&](int64_t c, std::vector<double>* m, int64_t n, int64_t j) {
    double dot = 0;
    for (int64_t r = 0; r < rows; ++r) dot += hidden[r * C + c] * (*m)[r * n + j];
    for (int64_t r = 0; r < rows; ++r) (*m)[r * n + j] -= dot * hidden[r * C + c];
  };
  for (int64_t c = 0; c < C; ++c) {
    double norm = 0;
    for (int64_t r = 0; r < rows; ++r) norm += hidden[r * C + c] * hidden[r * C + c];
    if (norm == 0) continue;
    for (int64_t r = 0; r < rows; ++r) hidden[r * C + c] /= std::sqrt(norm);
    for (int64_t j = c + 1; j < C; ++j) remove(c, &hidden, C, j);
    for (int64_t j = 0; j < V; ++j) remove(c, &logits, V, j);
  }
  for (const double z : logits) after += z * z;
  return std::sqrt(after / before);
}

// Whether the right last hidden states with another head make their logits.
void TryAnyHead(Gpt* model, const ModelCase& c, const NoiseFloor& floor, Diagnosis* diagnosis) {
  if (c.padded || c.input.n_decode > 0) return;
  ModelInput input = c.input;
  input.taps = {"ln_f"};
  const Outputs right = ModelReplay(model, std::move(input)).Run(c.right);
  const std::vector<double>& logits = c.theirs[c.input.taps.size()].values;
  if (const auto factor = FactorBetween(logits, right[1], floor.arithmetic)) {
    diagnosis->seen.push_back(
        fmt::format("logits are the right ones times {:.6g}: a factor that logit_scale does not "
                    "state",
                    *factor));
    return;
  }
  const double residual =
      ResidualOfAnyHead(right[0], logits, c.input.B * c.input.T, floor.arithmetic);
  if (!(residual <= floor.arithmetic)) return;
  diagnosis->verdict = DiagnosisVerdict::kFault;
  diagnosis->explanations = {{{"head_untied"}, residual, "a head that the folder does not have"}};
}

}  // namespace

Result<Diagnosis> DiagnoseModel(const TensorFile& file, const std::string& where,
                                const SettingTexts& given, const std::string& model_folder) {
  Dump dump(file, where, given);
  HEED_ASSIGN(LoadedModel loaded, LoadModel(model_folder, SimdKernels()));
  Gpt& model = *loaded.model;
  ModelCase c;
  HEED_TRY(CaseReader(&dump, model.config(), &c).Read());
  ModelReplay replay(&model, c.input);
  Replayer<ModelRecipe> replayer;
  replayer.theirs = c.theirs;
  replayer.rows = c.input.taps.size();
  const Observed& logits = c.theirs[replayer.rows];
  replayer.floor = NoiseFloorOf(logits.dtype, dump.coarsest());
  // Rounding of the layers adds up like a random walk.
  replayer.floor.arithmetic *= 1 + std::sqrt(static_cast<double>(model.config().n_layer));
  replayer.replay = [&replay](const ModelRecipe& recipe) { return replay.Run(recipe); };
  replayer.at_least = BoundsOf(&replay, c.input, logits.values, c.right);
  replayer.deviations = Deviations(model.config(), c).List();
  replayer.most_faults = 2;
  replayer.most_partners = Partners(model, c, replayer.deviations.size());
  const std::vector<Reading<ModelRecipe>> readings = Readings(c);
  Diagnosis diagnosis = FaultSearch<ModelRecipe>(replayer, readings).Run();
  if (diagnosis.verdict == DiagnosisVerdict::kUnexplained) {
    HEED_TRY(dump.CheckFinite(logits));
    TryAnyHead(&model, c, replayer.floor, &diagnosis);
  }
  return diagnosis;
}

std::optional<FaultView> ViewModelFault(Gpt* model, ModelInput input, const std::string& id) {
  ModelCase c;
  c.input = std::move(input);
  c.theirs = {{"logits", {c.input.B, c.input.T, model->config().vocab_size}}};
  ModelReplay replay(model, c.input);
  Replayer<ModelRecipe> replayer;
  replayer.theirs = c.theirs;
  replayer.replay = [&replay](const ModelRecipe& recipe) { return replay.Run(recipe); };
  replayer.deviations = Deviations(model->config(), c).List();
  return ViewOf(replayer, RightRecipe(model->config()), id);
}

std::span<const FaultKind> ModelFaults() { return kFaults; }

}  // namespace heed
