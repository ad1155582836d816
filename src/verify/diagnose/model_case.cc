#include "verify/diagnose/model_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/quote.h"
#include "tensor/shape.h"

namespace heed {
namespace {

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
  CaseReader(Dump* dump, const ModelConfig& config) : dump_(*dump), config_(config) {}

  Result<ModelCase> Read() {
    HEED_TRY(ReadArrangement());
    HEED_TRY(ReadTokens());
    HEED_TRY(ReadMask());
    HEED_TRY(ReadTaps());
    const ModelInput& in = case_.input;
    HEED_ASSIGN(Observed logits, dump_.Floats("logits", {in.B, in.T, config_.vocab_size},
                                              "[B, T, vocab_size]", /*any=*/true));
    ClearPadding(&logits, /*blocks=*/1, /*keys=*/false);
    case_.theirs.push_back(std::move(logits));
    HEED_TRY(ReadDecode());
    return std::move(case_);
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
  ModelCase case_;
};

}  // namespace

Result<ModelCase> ReadModelCase(Dump* dump, const ModelConfig& config) {
  return CaseReader(dump, config).Read();
}

}  // namespace heed
