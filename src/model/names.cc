#include "model/names.h"

#include <algorithm>
#include <utility>

namespace heed {
namespace {

constexpr ParameterNames kLlama[] = {
    {"model.embed_tokens.weight", "token_embd.weight", "tok_embeddings.weight"},
    {"model.layers.#.input_layernorm.weight", "blk.#.attn_norm.weight",
     "layers.#.attention_norm.weight"},
    {"model.layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight",
     "layers.#.attention.wq.weight", Rows::kQueryHeads},
    {"model.layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias", "", Rows::kQueryHeads},
    {"model.layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight",
     "layers.#.attention.wk.weight", Rows::kKeyHeads},
    {"model.layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias", "", Rows::kKeyHeads},
    {"model.layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight",
     "layers.#.attention.wv.weight"},
    {"model.layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias", ""},
    {"model.layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight",
     "layers.#.attention.wo.weight"},
    {"model.layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias", ""},
    {"model.layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight",
     "layers.#.ffn_norm.weight"},
    {"model.layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight",
     "layers.#.feed_forward.w1.weight"},
    {"model.layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight", "layers.#.feed_forward.w3.weight"},
    {"model.layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight",
     "layers.#.feed_forward.w2.weight"},
    {"model.norm.weight", "output_norm.weight", "norm.weight"},
    {"lm_head.weight", "output.weight", "output.weight"},
};

constexpr ParameterNames kGpt2[] = {
    {"wte.weight", "token_embd.weight", ""},
    {"wpe.weight", "position_embd.weight", ""},
    {"h.#.ln_1.weight", "blk.#.attn_norm.weight", ""},
    {"h.#.ln_1.bias", "blk.#.attn_norm.bias", ""},
    {"h.#.attn.c_attn.weight", "blk.#.attn_qkv.weight", ""},
    {"h.#.attn.c_attn.bias", "blk.#.attn_qkv.bias", ""},
    {"h.#.attn.c_proj.weight", "blk.#.attn_output.weight", ""},
    {"h.#.attn.c_proj.bias", "blk.#.attn_output.bias", ""},
    {"h.#.ln_2.weight", "blk.#.ffn_norm.weight", ""},
    {"h.#.ln_2.bias", "blk.#.ffn_norm.bias", ""},
    {"h.#.mlp.c_fc.weight", "blk.#.ffn_up.weight", ""},
    {"h.#.mlp.c_fc.bias", "blk.#.ffn_up.bias", ""},
    {"h.#.mlp.c_proj.weight", "blk.#.ffn_down.weight", ""},
    {"h.#.mlp.c_proj.bias", "blk.#.ffn_down.bias", ""},
    {"ln_f.weight", "output_norm.weight", ""},
    {"ln_f.bias", "output_norm.bias", ""},
    {"lm_head.weight", "output.weight", ""},
};

// The name with '#' for its layer, and the layer; both families' names have one number at most.
std::pair<std::string, std::string> PatternOf(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t dot = name.find(".layers.") != std::string_view::npos ? name.find(".layers.") + 7
                     : name.starts_with("h.")                        ? 1
                                                                     : std::string_view::npos;
  if (dot == std::string_view::npos) return {std::string(name), ""};
  const size_t end = std::min(name.find_first_not_of(kDigits, dot + 1), name.size());
  return {std::string(name.substr(0, dot + 1)) + "#" + std::string(name.substr(end)),
          std::string(name.substr(dot + 1, end - dot - 1))};
}

const ParameterNames* FindNames(Family family, std::string_view pattern) {
  const std::span<const ParameterNames> names = NamesOf(family);
  const auto found = std::ranges::find(names, pattern, &ParameterNames::heed);
  return found == names.end() ? nullptr : &*found;
}

bool IsTransposed(const FileOrder& order, const Parameter& p) {
  return order.out_in && p.axes == "in out";
}

// The heads whose rows are kept in another order there; 0 for none.
int64_t ReorderedHeads(const FileOrder& order, const ModelConfig& config, const Parameter& p) {
  if (!order.interleaved) return 0;
  const ParameterNames* names = FindNames(config.family(), PatternOf(p.name).first);
  if (names == nullptr || names->rows == Rows::kPlain) return 0;
  return names->rows == Rows::kQueryHeads ? config.n_head : config.n_kv_head;
}

// Calls copy(row in memory, row in the file) for all rows of `heads` heads of D rows.
template <class Copy>
void ForRows(int64_t heads, int64_t D, const Copy& copy) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < D / 2; ++i) {
      copy(h * D + i, h * D + 2 * i);
      copy(h * D + D / 2 + i, h * D + 2 * i + 1);
    }
  }
}

// out [columns, rows] from in [rows, columns].
void Transpose(const float* in, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
}

}  // namespace

std::span<const ParameterNames> NamesOf(Family family) {
  if (family == Family::kLlama) return kLlama;
  if (family == Family::kGpt2) return kGpt2;
  return {};
}

std::optional<std::string> NameIn(Naming naming, Family family, std::string_view name) {
  const auto [pattern, layer] = PatternOf(name);
  const ParameterNames* names = FindNames(family, pattern);
  if (names == nullptr) return std::nullopt;
  std::string there(naming == Naming::kGguf ? names->gguf : names->meta);
  if (there.empty()) return std::nullopt;
  const size_t place = there.find('#');
  if (place != std::string::npos) there.replace(place, 1, layer);
  return there;
}

std::vector<int64_t> ShapeIn(const FileOrder& order, const Parameter& p) {
  std::vector<int64_t> shape = p.shape;
  if (IsTransposed(order, p)) std::ranges::reverse(shape);
  return shape;
}

bool IsAsInMemory(const FileOrder& order, const ModelConfig& config, const Parameter& p) {
  return !IsTransposed(order, p) && ReorderedHeads(order, config, p) == 0;
}

bool HasColumns(const FileOrder& order, const Parameter& p) {
  return p.factor() && IsTransposed(order, p) == (p.axes == "in out");
}

std::vector<int64_t> FileRows(const FileOrder& order, const ModelConfig& config,
                              const Parameter& p) {
  const int64_t heads = ReorderedHeads(order, config, p);
  std::vector<int64_t> rows(static_cast<size_t>(heads * config.head_dim));
  ForRows(heads, config.head_dim, [&](int64_t memory, int64_t file) { rows[memory] = file; });
  return rows;
}

void FromFileOrder(const FileOrder& order, const ModelConfig& config, const Parameter& p,
                   const float* from, float* to) {
  const int64_t width = p.shape.size() == 2 ? p.shape[1] : 1;
  if (IsTransposed(order, p)) {
    Transpose(from, p.shape[1], p.shape[0], to);
  } else if (const int64_t heads = ReorderedHeads(order, config, p); heads > 0) {
    ForRows(heads, config.head_dim, [&](int64_t memory, int64_t file) {
      std::copy_n(from + file * width, width, to + memory * width);
    });
  } else {
    std::copy_n(from, p.elements, to);
  }
}

void ToFileOrder(const FileOrder& order, const ModelConfig& config, const Parameter& p,
                 const float* from, float* to) {
  const int64_t width = p.shape.size() == 2 ? p.shape[1] : 1;
  if (IsTransposed(order, p)) {
    Transpose(from, p.shape[0], p.shape[1], to);
  } else if (const int64_t heads = ReorderedHeads(order, config, p); heads > 0) {
    ForRows(heads, config.head_dim, [&](int64_t memory, int64_t file) {
      std::copy_n(from + memory * width, width, to + file * width);
    });
  } else {
    std::copy_n(from, p.elements, to);
  }
}

}  // namespace heed
