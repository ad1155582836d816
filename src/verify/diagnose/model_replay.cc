#include "verify/diagnose/model_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "nn/rope.h"
#include "verify/diagnose/attention_replay.h"
#include "verify/diagnose/product.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

std::span<const float> FloatsOf(const Parameter* p) {
  return {p->data, static_cast<size_t>(p->elements)};
}

Numbers DoublesOf(const Parameter* p) {
  return p == nullptr ? Numbers() : Numbers(p->data, p->data + p->elements);
}

// [rows, cols] -> [cols, rows], a few rows at a time for the sake of the cache.
std::vector<float> Transposed(std::span<const float> m, int64_t rows, int64_t cols) {
  constexpr int64_t kTogether = 16;
  std::vector<float> t(m.size());
  for (int64_t first = 0; first < rows; first += kTogether) {
    const int64_t end = std::min(first + kTogether, rows);
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = first; r < end; ++r) t[c * rows + r] = m[r * cols + c];
    }
  }
  return t;
}

// x [rows, in] times the transpose of weight [out, in], plus the bias.
Numbers Product(const Numbers& x, std::span<const float> weight, const Numbers& bias, int64_t in) {
  const auto rows = static_cast<int64_t>(x.size()) / in;
  const auto out = static_cast<int64_t>(weight.size()) / in;
  Numbers y(rows * out);
  for (int64_t r = 0; r < rows && !bias.empty(); ++r) {
    std::copy_n(bias.begin(), out, &y[r * out]);
  }
  AddProduct(x, weight, rows, out, in, y);
  return y;
}

// Where row `to` of a weight with `heads` heads of width d comes from when each head's interleaved
// pairs become halves.
int64_t HalvesRow(int64_t to, int64_t d) {
  const int64_t head = to / d, c = to % d;
  return head * d + (c < d / 2 ? 2 * c : 2 * (c - d / 2) + 1);
}
// The inverse.
int64_t PairsRow(int64_t to, int64_t d) {
  const int64_t head = to / d, c = to % d;
  return head * d + (c % 2) * (d / 2) + c / 2;
}

void Add(const Numbers& more, Numbers* x) {
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += more[i];
}

// Whether a row of a sequence that nothing precedes is the same with and without those behind it,
// and other sequences. Only what is known to be so counts.
bool LooksBackAlone(const AttentionRecipe& recipe) {
  constexpr SoftmaxKind kRowByRow[] = {SoftmaxKind::kKeys, SoftmaxKind::kTileMaximum,
                                       SoftmaxKind::kTileMaximumUncarried,
                                       SoftmaxKind::kPlusOneUnshifted, SoftmaxKind::kOverflow32};
  const MaskChoice& mask = recipe.mask;
  const bool hides = mask.shape == MaskShape::kCausal && mask.row == MaskRow::kOwn &&
                     (mask.hidden == HiddenAs::kLeftOut || mask.hidden == HiddenAs::kSwamped);
  return hides && !recipe.project.split_by_view && !recipe.project.batch_as_time &&
         recipe.cache.cache == CacheChoice::kRead && recipe.cache.heads != HeadMap::kAlongTime &&
         std::ranges::find(kRowByRow, recipe.softmax.kind) != std::end(kRowByRow) &&
         !recipe.combine.transposed && recipe.combine.merge == MergeKind::kRight;
}

// Past and new rows of [B, heads, ·, D], joined along the positions.
Numbers Joined(const Numbers& past, const Numbers& more, int64_t lines, int64_t P, int64_t T,
               int64_t D) {
  Numbers all;
  all.reserve(past.size() + more.size());
  for (int64_t line = 0; line < lines; ++line) {
    const auto old = past.begin() + line * P * D;
    const auto fresh = more.begin() + line * T * D;
    all.insert(all.end(), old, old + P * D);
    all.insert(all.end(), fresh, fresh + T * D);
  }
  return all;
}

}  // namespace

ModelRecipe RightRecipe(const ModelConfig& config) {
  ModelRecipe right;
  AttentionRecipe& attention = right.attention;
  attention.score.scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  attention.rotate.interleaved = config.rope_pairing == RopePairing::kInterleaved;
  attention.rotate.theta = config.rope_theta;
  attention.rotate.scaling = config.rope_scaling;
  attention.mask.window = config.sliding_window;
  attention.rotate.first = config.rope_first_position;
  if (config.position != Position::kRope) {
    attention.rotate.q_sense = attention.rotate.k_sense = 0;
  }
  if (config.family() != Family::kLlama) attention.project.fused_pieces = 1;
  right.decode = attention;
  right.norm.rms = config.norm == NormKind::kRmsNorm;
  right.norm.eps = config.norm_eps;
  if (config.mlp == MlpKind::kSwiglu) {
    right.activation = Activation::kSilu;
    right.gate = Gate::kGate;
  }
  return right;
}

ModelReplay::ModelReplay(Gpt* model, ModelInput input)
    : config_(model->config()), input_(std::move(input)) {
  ParameterSet& parameters = model->parameters();
  embedding_ = FloatsOf(&parameters.all().front());
  head_ = FloatsOf(model->head().weight);
  if (config_.position == Position::kLearned) table_ = DoublesOf(parameters.Find("wpe.weight"));
  if (config_.position == Position::kSinusoidal) {
    const std::vector<float> sinusoidal = SinusoidalTable(config_.block_size, config_.n_embd);
    table_.assign(sinusoidal.begin(), sinusoidal.end());
  }
  for (const heed::Block& block : model->blocks()) {
    Layer layer{NormOf(block.norm_1), NormOf(block.norm_2), AttentionOf(block.attention)};
    layer.up = MatrixOf(block.mlp.fc);
    layer.gate = MatrixOf(block.mlp.gate);
    layer.down = MatrixOf(block.mlp.proj);
    layers_.push_back(std::move(layer));
  }
  final_norm_ = NormOf(model->head().norm);
}

ModelReplay::Matrix ModelReplay::MatrixOf(const Linear& linear) {
  if (linear.weight == nullptr) return {};
  const std::span<const float> stored = FloatsOf(linear.weight);
  return {linear.out_in ? std::vector<float>(stored.begin(), stored.end())
                        : Transposed(stored, linear.in, linear.out),
          DoublesOf(linear.bias), linear.in, linear.out};
}

ModelReplay::NormWeights ModelReplay::NormOf(const Norm& norm) {
  return {DoublesOf(norm.gain), DoublesOf(norm.bias)};
}

AttentionCase ModelReplay::AttentionOf(const Attention& attention) const {
  AttentionCase c;
  AttentionSettings& s = c.settings;
  s.n_head = config_.n_head;
  s.n_kv_head = config_.n_kv_head;
  s.head_dim = config_.head_dim;
  s.position = config_.position;
  s.rotary_dim = config_.position == Position::kRope ? config_.rotary_dim : 0;
  s.window = config_.sliding_window;
  const auto add = [](const Linear& linear, int64_t first, SavedLinear* saved) {
    const Matrix m = MatrixOf(linear);
    saved->in = m.in;
    saved->out += m.out;
    saved->weight.insert(saved->weight.end(), m.weight.begin(), m.weight.end());
    saved->bias.insert(saved->bias.end(), m.bias.begin(), m.bias.end());
    saved->bias.resize(saved->out);
    WeightPart part{linear.weight->name, linear.bias == nullptr ? "" : linear.bias->name,
                    !linear.out_in, std::vector<int64_t>(m.out)};
    std::iota(part.rows.begin(), part.rows.end(), first);
    saved->parts.push_back(std::move(part));
  };
  for (const Linear& linear : attention.qkv) add(linear, c.qkv.out, &c.qkv);
  add(attention.proj, 0, &c.proj);
  return c;
}

SavedLinear ModelReplay::WithKeyRows(const SavedLinear& qkv, KeyRows rows) const {
  const int64_t D = config_.head_dim, keys = config_.n_kv_head * D;
  const int64_t other = keys / config_.n_head;  // the width that the wrong count of heads makes
  if (other % 2 != 0 || keys % config_.n_head != 0) return qkv;
  SavedLinear moved = qkv;
  const int64_t C = qkv.in, first = config_.n_head * D;
  const bool undone_by_queries = rows == KeyRows::kUndoneByQueryHeads;
  for (int64_t to = 0; to < keys; ++to) {
    const int64_t from =
        config_.rope_pairing == RopePairing::kHalf
            ? PairsRow(HalvesRow(to, undone_by_queries ? D : other), undone_by_queries ? other : D)
            : HalvesRow(PairsRow(to, undone_by_queries ? other : D), undone_by_queries ? D : other);
    std::copy_n(&qkv.weight[(first + from) * C], C, &moved.weight[(first + to) * C]);
    moved.bias[first + to] = qkv.bias[first + from];
  }
  return moved;
}

// Rows of different padding run by themselves, as if each were alone.
std::vector<ModelReplay::Group> ModelReplay::Groups(const ModelRecipe& recipe) const {
  const bool padded = std::ranges::any_of(input_.count, [&](int64_t n) { return n < input_.T; });
  if (!padded) return {{input_.B, input_.T, input_.tokens}};
  std::vector<Group> groups;
  for (int64_t b = 0; b < input_.B; ++b) {
    const int64_t pads = input_.first[b];
    const auto row = input_.tokens.begin() + b * input_.T;
    Group group{1, input_.count[b], {row + pads, row + pads + input_.count[b]}, b, 0, pads};
    if (!recipe.pads_hidden) {
      group.tokens.insert(group.tokens.begin(), row, row + pads);
      group.T += pads;
      group.skip = pads;
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// The position of a group's first row.
int64_t ModelReplay::Origin(const ModelRecipe& recipe, const Call& call) {
  const bool from_pad = recipe.positions_from_pad || (call.decode && recipe.decode_from_pad);
  return (from_pad ? call.group.pads : 0) - call.group.skip;
}

// The row of the position table for position t of a call.
int64_t ModelReplay::TableRow(const ModelRecipe& recipe, const Call& call, int64_t t) const {
  const PositionChoice choice = call.decode ? recipe.decode.rotate.position : PositionChoice{};
  int64_t position = call.P + t;
  if (choice == PositionChoice::kRestart) position = t;
  if (choice == PositionChoice::kChunkConstant) position = call.P;
  if (choice == PositionChoice::kOneTooFar) position += 1;
  position += Origin(recipe, call);
  if (recipe.table == TableChoice::kOffsetOne) position += 1;
  if (recipe.table == TableChoice::kOffsetTwo) position += 2;
  // Padding before position 0 reads the first row, and beyond the table stands its last.
  return std::clamp<int64_t>(position, 0, config_.block_size - 1);
}

ModelReplay::Numbers ModelReplay::Embed(const ModelRecipe& recipe, const Call& call) const {
  const int64_t C = config_.n_embd;
  Numbers x(call.group.B * call.T * C);
  for (int64_t b = 0; b < call.group.B; ++b) {
    for (int64_t t = 0; t < call.T; ++t) {
      double* to = &x[(b * call.T + t) * C];
      const float* from = &embedding_[call.group.tokens[b * call.group.T + call.P + t] * C];
      for (int64_t c = 0; c < C; ++c) to[c] = recipe.embedding_factor * from[c];
      if (table_.empty() || recipe.table == TableChoice::kMissing) continue;
      const double* row = &table_[TableRow(recipe, call, t) * C];
      for (int64_t c = 0; c < C; ++c) {
        const bool sorted = recipe.table == TableChoice::kSinesFirst;
        to[c] += row[!sorted ? c : c < C / 2 ? 2 * c : 2 * (c - C / 2) + 1];
      }
    }
  }
  return x;
}

void ModelReplay::Tap(const Call& call, const char* place, int64_t layer, const Numbers& values) {
  if (!call.tapped) return;
  const std::string name = layer < 0 ? place : fmt::format("{}.{}", place, layer);
  if (std::ranges::find(input_.taps, name) == input_.taps.end()) return;
  const Group& group = call.group;
  if (group.B == input_.B && group.T == input_.T && group.skip == 0) {
    tapped_[name] = values;
    return;
  }
  // One row of the batch, put where its tokens are.
  const int64_t B = input_.B, T = input_.T, first = input_.first[group.row];
  const int64_t kept = group.T - group.skip;
  const bool map = std::string_view(place) == "pattern";
  // Blocks [.., group.T, width] of the group become blocks [.., T, width of the whole].
  const int64_t blocks = map ? config_.n_head : 1;
  const int64_t width = static_cast<int64_t>(values.size()) / (blocks * group.T);
  const int64_t wide = map ? T : width, copied = map ? kept : width;
  Numbers& whole = tapped_[name];
  whole.resize(B * blocks * T * wide);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t t = 0; t < kept; ++t) {
      const int64_t from = (block * group.T + group.skip + t) * width + (map ? group.skip : 0);
      const int64_t to = ((group.row * blocks + block) * T + first + t) * wide + (map ? first : 0);
      std::copy_n(&values[from], copied, &whole[to]);
    }
  }
}

// [B, heads, T, D] as taps have it, [B, T, heads, D].
void ModelReplay::TapHeads(const Call& call, const char* place, int64_t layer, int64_t heads,
                           const Numbers& values) {
  if (!call.tapped) return;
  const int64_t T = call.T, D = config_.head_dim;
  Numbers moved(values.size());
  for (int64_t r = 0; r < call.group.B * heads * T; ++r) {
    const int64_t b = r / (heads * T), h = r / T % heads, t = r % T;
    std::copy_n(&values[r * D], D, &moved[((b * T + t) * heads + h) * D]);
  }
  Tap(call, place, layer, moved);
}

ModelReplay::Numbers ModelReplay::Attend(const ModelRecipe& recipe, const Call& call, int64_t layer,
                                         const Numbers& x) {
  Layer& l = layers_[layer];
  AttentionCase& c = l.attention;
  c.B = call.group.B;
  c.T = call.T;
  c.P = call.P;
  c.x = x;
  SavedLinear right;
  const bool moves = recipe.key_rows != KeyRows::kRight;
  if (moves) right = std::exchange(c.qkv, WithKeyRows(c.qkv, recipe.key_rows));
  c.past_k = l.past_k;
  c.past_v = l.past_v;
  AttentionRecipe choice = call.decode ? recipe.decode : recipe.attention;
  choice.rotate.first += Origin(recipe, call);
  if (call.decode && recipe.upper_layers_ahead && layer > 0) choice.rotate.first += call.T;
  AttentionReplay replay(c);
  const AttentionReplay::Shared y = replay.Tensor(choice, Stage::kY);
  const int64_t H = config_.n_head, Hkv = config_.n_kv_head;
  TapHeads(call, "q", layer, H, *replay.Tensor(choice, Stage::kQ));
  TapHeads(call, "k", layer, Hkv, *replay.Tensor(choice, Stage::kK));
  TapHeads(call, "v", layer, Hkv, *replay.Tensor(choice, Stage::kV));
  TapHeads(call, "q_rot", layer, H, *replay.Tensor(choice, Stage::kQRot));
  TapHeads(call, "k_rot", layer, Hkv, *replay.Tensor(choice, Stage::kKRot));
  Tap(call, "pattern", layer, *replay.Tensor(choice, Stage::kPattern));
  Tap(call, "attn_out", layer, *y);
  if (input_.n_decode > 0 && !choice.project.batch_as_time) {
    // What is written across the borders of heads stays so.
    const bool flat = choice.cache.cache == CacheChoice::kJoinedFlat;
    const int64_t lines = flat ? c.B : c.B * Hkv, D = config_.head_dim * (flat ? Hkv : 1);
    l.past_k = Joined(l.past_k, *replay.Tensor(choice, Stage::kKRot), lines, call.P, call.T, D);
    l.past_v = Joined(l.past_v, *replay.Tensor(choice, Stage::kV), lines, call.P, call.T, D);
  }
  if (moves) c.qkv = std::move(right);
  return *y;
}

ModelReplay::Numbers ModelReplay::FeedForward(const ModelRecipe& recipe, const Call& call,
                                              int64_t layer, const Numbers& x) {
  const Layer& l = layers_[layer];
  const auto apply = [](const Matrix& m, bool turned, bool bias, const Numbers& from) {
    const std::vector<float> other =
        turned ? Transposed(m.weight, m.out, m.in) : std::vector<float>();
    return Product(from, turned ? other : m.weight, bias ? m.bias : Numbers(), m.in);
  };
  Numbers hidden = apply(l.up, recipe.turned_up, recipe.up_bias, x);
  Tap(call, "mlp_pre", layer, hidden);
  const Numbers gate =
      l.gate.in == 0 ? hidden : apply(l.gate, recipe.turned_gate, recipe.gate_bias, x);
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = Hidden(recipe.gate, recipe.activation, hidden[i], gate[i]);
  }
  Tap(call, "mlp_post", layer, hidden);
  Numbers y = apply(l.down, recipe.turned_down, recipe.down_bias, hidden);
  Tap(call, "mlp_out", layer, y);
  return y;
}

ModelReplay::Numbers ModelReplay::Branch(const ModelRecipe& recipe, const Call& call, int64_t layer,
                                         bool mlp, const Numbers& x) {
  return mlp ? FeedForward(recipe, call, layer, x) : Attend(recipe, call, layer, x);
}

void ModelReplay::Block(const ModelRecipe& recipe, const Call& call, int64_t layer, Numbers* x) {
  for (const bool mlp : {false, true}) {
    const NormWeights& weights = mlp ? layers_[layer].norm_2 : layers_[layer].norm_1;
    if (recipe.residual == ResidualChoice::kNormAfter) {
      Add(Branch(recipe, call, layer, mlp, *x), x);
      *x = NormRows(recipe.norm, *x, weights.gain, weights.bias);
      continue;
    }
    Numbers normed = NormRows(recipe.norm, *x, weights.gain, weights.bias);
    Tap(call, mlp ? "ln_2" : "ln_1", layer, normed);
    if (recipe.residual == ResidualChoice::kIntoBranch) Add(*x, &normed);
    const Numbers branch = Branch(recipe, call, layer, mlp, normed);
    const ResidualChoice missing = mlp ? ResidualChoice::kNoMlp : ResidualChoice::kNoAttention;
    if (recipe.residual == ResidualChoice::kFromNormed) *x = std::move(normed);
    if (recipe.residual == missing) {
      *x = branch;
    } else {
      Add(branch, x);
    }
    Tap(call, mlp ? "resid_post" : "resid_mid", layer, *x);
  }
}

ModelReplay::Numbers ModelReplay::Logits(const ModelRecipe& recipe, const Call& call,
                                         const Heads& heads) {
  Numbers x = Embed(recipe, call);
  Tap(call, "embed", -1, x);
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
    Tap(call, "resid_pre", layer, x);
    Block(recipe, call, layer, &x);
  }
  if (recipe.final_norm) x = NormRows(recipe.norm, x, final_norm_.gain, final_norm_.bias);
  Tap(call, "ln_f", -1, x);
  Numbers logits =
      Product(x, recipe.embedding_as_head ? heads.embedding : heads.own, {}, config_.n_embd);
  for (double& z : logits) z *= recipe.logit_factor;
  return logits;
}

void ModelReplay::Forget() {
  for (Layer& l : layers_) {
    l.past_k.clear();
    l.past_v.clear();
  }
}

void ModelReplay::Decode(const ModelRecipe& recipe, const Group& group, Numbers* out) {
  const int64_t n = input_.n_decode, V = config_.vocab_size, past = group.T - n;
  const Heads heads{head_, embedding_};
  if (past > 0) Logits(recipe, {group, 0, past, false, false}, heads);
  const int64_t step = recipe.decode_in_steps ? 1 : n;
  for (int64_t done = 0; done < n; done += step) {
    const Numbers logits = Logits(recipe, {group, past + done, step, true, false}, heads);
    for (int64_t b = 0; b < group.B; ++b) {
      std::copy_n(logits.begin() + b * step * V, step * V,
                  out->begin() + ((group.row + b) * n + done) * V);
    }
  }
  Forget();
}

Outputs ModelReplay::Run(const ModelRecipe& recipe) {
  const int64_t V = config_.vocab_size, T = input_.T;
  tapped_.clear();
  Numbers logits(input_.B * T * V), decoded(input_.B * input_.n_decode * V);
  for (const Group& group : Groups(recipe)) {
    const Numbers all = Logits(recipe, {group, 0, group.T, false, true}, Heads{head_, embedding_});
    Forget();
    for (int64_t b = 0; b < group.B; ++b) {
      const int64_t row = group.row + b, kept = group.T - group.skip;
      std::copy_n(all.begin() + (b * group.T + group.skip) * V, kept * V,
                  logits.begin() + (row * T + input_.first[row]) * V);
    }
    if (input_.n_decode > 0) Decode(recipe, group, &decoded);
  }
  Outputs outputs;
  for (const std::string& tap : input_.taps) outputs.push_back(tapped_[tap]);
  outputs.push_back(std::move(logits));
  if (input_.n_decode > 0) outputs.push_back(std::move(decoded));
  return outputs;
}

void ModelReplay::LookAt(std::span<const int64_t> columns) {
  const int64_t C = config_.n_embd;
  own_rows_.clear();
  embedding_rows_.clear();
  for (const int64_t column : columns) {
    const auto own = head_.begin() + column * C, embedding = embedding_.begin() + column * C;
    own_rows_.insert(own_rows_.end(), own, own + C);
    embedding_rows_.insert(embedding_rows_.end(), embedding, embedding + C);
  }
}

std::optional<ModelReplay::Numbers> ModelReplay::Beginning(const ModelRecipe& recipe, int64_t n) {
  if (!LooksBackAlone(recipe.attention) || !recipe.pads_hidden) return std::nullopt;
  Group group = Groups(recipe)[0];
  group.B = 1;
  group.T = n;
  group.tokens.resize(n);
  const Heads all{head_, embedding_}, some{own_rows_, embedding_rows_};
  Numbers logits = Logits(recipe, {group, 0, n, false, false}, own_rows_.empty() ? all : some);
  Forget();
  return logits;
}

}  // namespace heed
