// Causal self-attention written out in plain loops, with faults planted in it by name: what the
// diagnosis is tried on. It shares nothing with the diagnosis but the names. Faults that begin with
// "odd_" are not in the catalogue.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "support/tensor_set.h"
#include "tensor/convert.h"

namespace heed {

struct PlantedCase {
  int64_t B = 2, T = 7, P = 0, H = 6, Hkv = 3, D = 8, C = 26;
  bool rope = true, interleaved = false, bias = true;
  int64_t rotary_dim = 8, window = 0, first = 0;  // first: number of the first position
  double theta = 10000;
  // Rows of padding before each batch row's tokens, behind them where negative; none when empty.
  std::vector<int64_t> pads;
  bool counts_tokens = false;                   // positions count tokens alone
  int64_t padding_stands_at = 0;                // then
  bool empty_rows_are_means = false;            // of padding that sees no key; else 0
  bool states_empty_rows = false;               // that they are 0
  std::vector<std::vector<int64_t>> documents;  // for each batch row its tokens' documents
  bool states_positions = false;                // position_ids are part of the dump
  bool alibi = false;
  enum class Norm { kNone, kBefore, kAfter } norm = Norm::kNone;  // of q and k, about the rotation
  bool norm_all_heads = false, norm_gain = true;
  bool norm_layer = false, norm_bias = false;  // LayerNorm, with a bias
  double spread = 1;                           // of x
  uint64_t seed = 1;
  // What every intermediate and every table of angles is rounded to.
  std::function<double(double)> round = [](double x) { return x; };
};

// [a, b, c, d] with negative sizes never asked for.
class Grid {
 public:
  Grid() = default;
  Grid(int64_t a, int64_t b, int64_t c, int64_t d)
      : shape{a, b, c, d}, values(static_cast<size_t>(a * b * c * d)) {}
  double& at(int64_t a, int64_t b, int64_t c, int64_t d) {
    return values[((a * shape[1] + b) * shape[2] + c) * shape[3] + d];
  }
  std::vector<int64_t> shape;
  std::vector<double> values;
};

class PlantedAttention {
 public:
  PlantedAttention(const PlantedCase& sizes, std::set<std::string> faults,
                   std::function<double(double)> store)
      : c_(sizes), faults_(std::move(faults)), store_(std::move(store)) {}

  // o_proj is the identity.
  bool identity_output = false;

  // x, weights and y, rounded by `store`, with every setting stated.
  TensorSet Dump(const std::set<std::string>& results = {"y"}) {
    x_ = Random(c_.B, 1, c_.T, c_.C, c_.spread);
    const int64_t rows[4] = {c_.H * c_.D, c_.Hkv * c_.D, c_.Hkv * c_.D, c_.C};
    const int64_t columns[4] = {c_.C, c_.C, c_.C, c_.H * c_.D};
    for (int p = 0; p < 4; ++p) {
      weight_[p] = Random(1, 1, rows[p], columns[p], 1.3 / std::sqrt(double(columns[p])));
      bias_[p] = Random(1, 1, 1, rows[p], c_.bias ? 0.3 : 0);
    }
    for (int64_t i = 0; identity_output && i < c_.C * c_.C; ++i) {
      weight_[3].values[i] = i % (c_.C + 1) == 0;
    }
    past_k_ = Random(c_.B, c_.Hkv, c_.P, c_.D, 1);
    past_v_ = Random(c_.B, c_.Hkv, c_.P, c_.D, 1);
    for (const int i : {0, 1}) {
      const int64_t width = c_.norm_all_heads ? (i == 0 ? c_.H : c_.Hkv) * c_.D : c_.D;
      gain_[i] = Random(1, 1, 1, width, 0.4);
      for (double& value : gain_[i].values) value = store_(1 + value);
      shift_[i] = Random(1, 1, 1, width, c_.norm_bias ? 0.5 : 0);
    }
    Compute();
    TensorSet set;
    set["x"] = {{c_.B, c_.T, c_.C}, x_.values};
    const char* const names[4] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    for (int p = 0; p < 4; ++p) {
      set[std::string(names[p]) + ".weight"] = {{rows[p], columns[p]}, weight_[p].values};
      if (c_.bias) set[std::string(names[p]) + ".bias"] = {{rows[p]}, bias_[p].values};
    }
    if (c_.P > 0) {
      set["past_k"] = {past_k_.shape, past_k_.values};
      set["past_v"] = {past_v_.shape, past_v_.values};
    }
    if (results.contains("y")) set["y"] = {{c_.B, c_.T, c_.C}, Stored(y_)};
    if (results.contains("q_rot")) set["q_rot"] = {q_.shape, Stored(q_)};
    if (results.contains("pattern")) set["pattern"] = {pattern_.shape, Stored(pattern_)};
    if (results.contains("merged")) {
      set["merged"] = {{c_.B, c_.T, c_.H * c_.D}, Stored(merged_)};
    }
    if (results.contains("scores")) set["scores"] = {scores_.shape, Stored(scores_)};
    set.settings = {{"n_head", std::to_string(c_.H)},
                    {"n_kv_head", std::to_string(c_.Hkv)},
                    {"head_dim", std::to_string(c_.D)},
                    {"position", c_.rope ? "rope" : "none"}};
    if (c_.rope) {
      set.settings["rope_theta"] = std::to_string(c_.theta);
      set.settings["rope_pairing"] = c_.interleaved ? "interleaved" : "half";
      set.settings["rope_first_position"] = std::to_string(c_.first);
      set.settings["rotary_dim"] = std::to_string(c_.rotary_dim);
    }
    if (c_.window > 0) set.settings["window"] = std::to_string(c_.window);
    AddContext(&set);
    return set;
  }

 private:
  void AddContext(TensorSet* set) const {
    const auto integers = [&](const char* name, int64_t n, const auto& at) {
      Array array{{c_.B, n}, {}, DType::kI64};
      for (int64_t i = 0; i < c_.B * n; ++i) {
        array.values.push_back(static_cast<double>(at(i / n, i % n)));
      }
      (*set)[name] = array;
    };
    const auto document = [&](int64_t b, int64_t t) { return c_.documents[b][t]; };
    if (!c_.pads.empty()) {
      integers("attention_mask", c_.P + c_.T, [&](int64_t b, int64_t j) { return IsToken(b, j); });
    }
    if (!c_.documents.empty()) integers("document_ids", c_.T, document);
    if (c_.states_positions) {
      integers("position_ids", c_.T, [&](int64_t b, int64_t t) { return RightPosition(b, t); });
    }
    if (c_.alibi) set->settings["alibi"] = "true";
    if (c_.states_empty_rows) set->settings["rows_without_keys"] = "zero";
    if (c_.norm == PlantedCase::Norm::kNone) return;
    set->settings["qk_norm"] = c_.norm == PlantedCase::Norm::kAfter ? "after_rope" : "before_rope";
    set->settings["norm_eps"] = "1e-06";
    set->settings["qk_layernorm"] = c_.norm_layer ? "true" : "false";
    const std::string names[2] = {"q_norm", "k_norm"};
    for (const int i : {0, 1}) {
      if (c_.norm_gain) (*set)[names[i] + ".weight"] = {{gain_[i].shape[3]}, gain_[i].values};
      if (c_.norm_bias) (*set)[names[i] + ".bias"] = {{shift_[i].shape[3]}, shift_[i].values};
    }
  }

  // Key j of P cached and T new ones.
  bool IsToken(int64_t b, int64_t j) const {
    if (c_.pads.empty()) return true;
    const int64_t n = c_.pads[b];
    return n >= 0 ? j >= n : j < c_.P + c_.T + n;
  }

  // From the first token, from the first of the document.
  int64_t RightPosition(int64_t b, int64_t t) const {
    if (!c_.documents.empty()) {
      int64_t first = t;
      while (first > 0 && c_.documents[b][first - 1] == c_.documents[b][t]) --first;
      return t - first;
    }
    const int64_t left = c_.pads.empty() ? 0 : std::max<int64_t>(c_.pads[b], 0);
    return c_.P + t < left ? c_.padding_stands_at : c_.P + t - left + c_.first;
  }

  bool Has(const char* fault) const { return faults_.contains(fault); }

  Grid Random(int64_t a, int64_t b, int64_t c, int64_t d, double scale) {
    Grid grid(a, b, c, d);
    const RandomKey key{c_.seed, 7, stream_++};
    for (size_t i = 0; i < grid.values.size(); ++i) {
      grid.values[i] = store_(scale * RandomNormal(key, i));
    }
    return grid;
  }

  std::vector<double> Stored(const Grid& grid) const {
    std::vector<double> stored;
    for (const double value : grid.values) stored.push_back(store_(value));
    return stored;
  }

  Grid Project(int p, int64_t heads) {
    Grid out(c_.B, heads, c_.T, c_.D);
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t t = 0; t < c_.T; ++t) {
        for (int64_t j = 0; j < heads * c_.D; ++j) {
          double sum = Has("bias_missing") && p == 2 ? 0 : bias_[p].at(0, 0, 0, j);
          for (int64_t i = 0; i < c_.C; ++i) sum += x_.at(b, 0, t, i) * weight_[p].at(0, 0, j, i);
          sum = c_.round(sum);
          if (Has("heads_not_split")) {
            const int64_t flat = t * heads * c_.D + j;
            out.values[b * heads * c_.T * c_.D + flat] = sum;
          } else {
            out.at(b, j / c_.D, t, j % c_.D) = sum;
          }
        }
      }
    }
    return out;
  }

  double Position(int64_t b, int64_t t, int64_t h, bool keys) const {
    if (keys && Has("rope_fragments_joined")) return static_cast<double>(t % 3);
    if (Has("left_pad_positions") || Has("packing_positions_not_reset")) {
      return static_cast<double>(c_.first + c_.P + t);
    }
    if (c_.states_positions || c_.counts_tokens) return static_cast<double>(RightPosition(b, t));
    const int64_t first = Has("evicted_length_as_position") ? 0 : c_.first;
    if (Has("rope_wrong_axis")) return static_cast<double>(first + h);
    if (Has("position_restart")) return static_cast<double>(first + t);
    if (Has("rope_window_constant")) return static_cast<double>(first + c_.P);
    const auto position = static_cast<double>(first + c_.P + t + Has("position_upper_layers"));
    if (Has("coarse_positions")) return Bf16ToFloat(DoubleToBf16(position));
    return position * (Has("odd_stretched_positions") ? 1.5 : 1);
  }

  void NormaliseHeads(Grid* x, int which) {
    if (Has("qk_norm_missing") && which == 1) return;
    const bool all = c_.norm_all_heads != Has("qk_norm_axis");
    const int64_t heads = x->shape[1], width = all ? heads * c_.D : c_.D;
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t t = 0; t < c_.T; ++t) {
        for (int64_t first = 0; first < heads * c_.D; first += width) {
          double squares = 0, mean = 0;
          for (int64_t c = first; c < first + width; ++c) {
            mean += x->at(b, c / c_.D, t, c % c_.D) / double(width);
          }
          if (c_.norm_layer == Has("qk_norm_kind")) mean = 0;
          for (int64_t c = first; c < first + width; ++c) {
            squares += std::pow(x->at(b, c / c_.D, t, c % c_.D) - mean, 2);
          }
          const double divisor = std::sqrt(squares / double(width) + 1e-6);
          for (int64_t c = first; c < first + width; ++c) {
            const int64_t g = c_.norm_all_heads ? c : c % c_.D;
            const bool gain = c_.norm_gain && !Has("qk_norm_gain_missing");
            double& value = x->at(b, c / c_.D, t, c % c_.D);
            const double shift = Has("qk_norm_bias_missing") ? 0 : shift_[which].values[g];
            value =
                c_.round((value - mean) / divisor * (gain ? gain_[which].values[g] : 1) + shift);
          }
        }
      }
    }
  }

  // All of one length.
  void ShareLength(Grid* x) const {
    for (size_t first = 0; first < x->values.size(); first += size_t(c_.D)) {
      double square = 0;
      for (int64_t d = 0; d < c_.D; ++d) square += std::pow(x->values[first + size_t(d)], 2);
      for (int64_t d = 0; d < c_.D; ++d) {
        x->values[first + size_t(d)] *= std::sqrt(double(c_.D) / square);
      }
    }
  }

  void Rotate(Grid* x, double sense, bool keys = false, bool halves = false) {
    const int64_t r = Has("rope_partial_ignored") ? c_.D : c_.rotary_dim;
    const int64_t width = Has("rope_freq_width") ? c_.D : r;
    const bool interleaved = c_.interleaved != Has("rope_pairing");
    const double theta = Has("rope_theta") ? 500000 : c_.theta;
    const Grid from = *x;
    Grid source = from;
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t h = 0; h < x->shape[1]; ++h) {
        for (int64_t t = 0; t < x->shape[2]; ++t) {
          for (int64_t i = 0; i < r / 2; ++i) {
            double frequency = std::pow(theta, -2.0 * double(i) / double(width));
            if (Has("rope_low_precision")) frequency = Bf16ToFloat(DoubleToBf16(frequency));
            const double a = sense * Position(b, t, h, keys) * frequency;
            const int64_t c0 = interleaved ? 2 * i : i;
            const int64_t c1 = interleaved ? 2 * i + 1 : i + width / 2;
            const double x0 = source.at(b, h, t, c0), x1 = source.at(b, h, t, c1);
            const double cos = c_.round(std::cos(a)), sin = c_.round(std::sin(a));
            if (Has("rope_cos_plus_sin")) {
              x->at(b, h, t, c0) = x0 * (cos + sin);
              x->at(b, h, t, c1) = x1 * (cos + sin);
              continue;
            }
            if (Has("rope_mixed_layouts")) {
              // Channel c finds its angle where the other pairing keeps that of channel c.
              const auto angle = [&](int64_t c) {
                const int64_t pair = interleaved ? c % (r / 2) : c / 2;
                return sense * Position(b, t, h, keys) * std::pow(theta, -2.0 * double(pair) / r);
              };
              x->at(b, h, t, c0) = x0 * std::cos(angle(c0)) - x1 * std::sin(angle(c0));
              x->at(b, h, t, c1) = x0 * std::sin(angle(c1)) + x1 * std::cos(angle(c1));
              continue;
            }
            x->at(b, h, t, halves ? i : c0) = c_.round(x0 * cos - x1 * sin);
            x->at(b, h, t, halves ? i + r / 2 : c1) = c_.round(x0 * sin + x1 * cos);
          }
        }
      }
    }
  }

  // Which row's padding a head is given.
  int64_t MaskRow(int64_t b, int64_t h) const {
    return Has("mask_fold_order") ? (h * c_.B + b) / c_.H : b;
  }

  bool Visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!IsToken(MaskRow(b, h), j) && !Has("padding_not_masked")) return false;
    if (!c_.documents.empty() && c_.documents[b][i] != c_.documents[b][j] &&
        !Has("packing_not_isolated")) {
      return false;
    }
    return Visible(i, j);
  }

  bool Visible(int64_t i, int64_t j) const {
    const bool ring = Has("ring_wraps") || Has("ring_clamps");
    const int64_t at = (ring ? c_.P - c_.T : before_) + i;
    if (Has("mask_missing")) return true;
    if (Has("mask_transposed")) return j >= at;
    if (Has("mask_polarity")) return j > at;
    if (Has("mask_diagonal_excluded")) return j < at;
    if (Has("mask_shifted_by_one")) return j <= at + 1;
    if (Has("causal_align_top_left")) return j <= i;
    if (Has("odd_self_alone")) return j == at;
    if (Has("odd_every_third_key") && j % 3 == 2 && j != at) return false;
    int64_t window = c_.window + Has("window_off_by_one") + 3 * Has("window_value");
    if (c_.window == 0 || Has("window_sign")) window = 1 << 20;
    return j <= at && at - j < window;
  }

  double Scale() const {
    const auto root = [](int64_t n) { return 1 / std::sqrt(double(n)); };
    if (Has("scale_missing")) return 1;
    if (Has("scale_zero")) return 0;
    if (Has("scale_d_model")) return root(c_.C);
    if (Has("scale_num_heads")) return root(c_.H);
    if (Has("scale_head_dim_vs_width")) return root(c_.C) / root(c_.H);
    if (Has("scale_linear")) return 1 / double(c_.D);
    if (Has("scale_value")) return 0.123;
    return root(c_.D);
  }

  // Press et al.: of the power of two below, then every other one of the power above.
  double Slope(int64_t h) const {
    if (Has("alibi_non_power_of_two")) return std::pow(2, -8 * double(h + 1) / double(c_.H));
    int64_t n = 1;
    while (2 * n <= c_.H) n *= 2;
    const double shift = Has("alibi_slope_exponent") ? 0 : 1;
    if (h < n) return std::pow(2, -8 * (double(h) + shift) / double(n));
    return std::pow(2, -4 * (double(2 * (h - n)) + shift) / double(n));
  }

  double Bias(int64_t h, int64_t i, int64_t j) const {
    if (!c_.alibi || Has("alibi_missing")) return 0;
    const double distance = double(c_.P + i - j) * (Has("alibi_sign") ? -1 : 1);
    return -Slope(h) * distance * (Has("alibi_scaled") ? Scale() : 1);
  }

  int64_t KvHead(int64_t h) const {
    if (Has("gqa_repeat_axis")) return h;
    if (Has("gqa_tiled")) return h % c_.Hkv;
    if (Has("gqa_divisor")) return std::min(h / c_.Hkv, c_.Hkv - 1);
    return h / (c_.H / c_.Hkv);
  }

  void Compute() {
    q_ = Project(Has("qk_swapped") || Has("qk_from_one_tensor") ? 1 : 0, c_.H);
    Grid k = Project(Has("kv_swapped") ? 2 : Has("qk_swapped") ? 0 : 1, c_.Hkv);
    Grid v = Project(Has("kv_swapped") ? 1 : Has("qk_from_one_tensor") ? 1 : 2, c_.Hkv);
    const bool before = (c_.norm == PlantedCase::Norm::kBefore) != Has("qk_norm_after_rope");
    if (c_.norm != PlantedCase::Norm::kNone && before) {
      NormaliseHeads(&q_, 0);
      NormaliseHeads(&k, 1);
    }
    if (c_.rope && !Has("rope_missing")) {
      for (int times = 0; times < (Has("rope_twice") && c_.P == 0 ? 2 : 1); ++times) {
        if (Has("odd_query_length")) ShareLength(&q_);
        Rotate(&q_, Has("rope_sign") ? -1 : 1, /*keys=*/false,
               Has("rope_output_not_reinterleaved"));
        Rotate(&k, Has("rope_sign") || Has("rope_k_sign_only") ? -1 : 1, /*keys=*/true);
      }
      if (Has("rope_on_v")) Rotate(&v, 1);
    }
    if (c_.norm != PlantedCase::Norm::kNone && !before) {
      NormaliseHeads(&q_, 0);
      NormaliseHeads(&k, 1);
    }
    const int64_t P = Has("cache_not_read") ? 0 : c_.P;
    // Rows that are read and that nobody wrote, between the cached ones and the new ones; negative
    // when cached rows are skipped.
    const int64_t hole = Has("cache_hole") ? 1 : Has("prefix_reuse_misaligned") ? -2 : 0;
    const int64_t S = P + hole + c_.T;
    Grid keys(c_.B, c_.Hkv, S, c_.D), values(c_.B, c_.Hkv, S, c_.D);
    const auto cached = [&](double x) {
      return Has("cache_dtype_reinterpreted") ? double(F16ToFloat(DoubleToBf16(x))) : x;
    };
    for (int64_t b = 0; b < c_.B; ++b) {
      const int64_t past = Has("beam_cache_not_reordered") ? c_.B - 1 - b : b;
      for (int64_t h = 0; h < c_.Hkv; ++h) {
        for (int64_t j = 0; j < S; ++j) {
          for (int64_t d = 0; d < c_.D; ++d) {
            const int64_t to = j - P - hole;  // among the new ones
            if (to >= 0) {
              keys.at(b, h, j, d) = k.at(b, h, to, d);
              values.at(b, h, j, d) = v.at(b, h, to, d);
            } else if (j < P) {
              keys.at(b, h, j, d) = cached(past_k_.at(past, h, j, d));
              values.at(b, h, j, d) = cached(past_v_.at(past, h, j, d));
            }
          }
        }
      }
    }
    if (Has("ring_wraps") || Has("ring_clamps")) {
      WriteIntoRing(&keys);
      WriteIntoRing(&values);
      Attend(keys, values, P);
      return;
    }
    if (Has("cache_head_stride")) {
      JoinFlat(past_k_, k, &keys);
      JoinFlat(past_v_, v, &values);
    }
    before_ = P + hole;
    if (Has("gqa_repeat_axis")) {
      for (Grid* rows : {&keys, &values}) RepeatAlongTime(rows);
    }
    Attend(keys, values, S);
  }

  // P rows hold the past, oldest first; the chunk goes over the oldest, or over the newest.
  void WriteIntoRing(Grid* rows) const {
    Grid ring(c_.B, c_.Hkv, c_.P, c_.D);
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t h = 0; h < c_.Hkv; ++h) {
        for (int64_t j = 0; j < c_.P + c_.T; ++j) {
          const int64_t first = Has("ring_wraps") ? 0 : c_.P - c_.T;
          const int64_t slot = j < c_.P ? j : first + j - c_.P;
          for (int64_t d = 0; d < c_.D; ++d) ring.at(b, h, slot, d) = rows->at(b, h, j, d);
        }
      }
    }
    *rows = ring;
  }

  // All cached rows of a sequence, then all new ones, whatever the head.
  void JoinFlat(const Grid& past, const Grid& fresh, Grid* all) const {
    const int64_t old = c_.Hkv * c_.P * c_.D, more = c_.Hkv * c_.T * c_.D;
    for (int64_t b = 0; b < c_.B; ++b) {
      const auto to = all->values.begin() + b * (old + more);
      std::copy_n(past.values.begin() + b * old, old, to);
      std::copy_n(fresh.values.begin() + b * more, more, to + old);
    }
  }

  // [B, Hkv, S, D] with every row H / Hkv times, taken for [B, H, S, D].
  void RepeatAlongTime(Grid* rows) const {
    const int64_t S = rows->shape[2], times = c_.H / c_.Hkv;
    Grid repeated(c_.B, c_.H, S, c_.D);
    for (int64_t i = 0; i < c_.B * c_.H * S; ++i) {
      std::copy_n(rows->values.begin() + i / times * c_.D, c_.D,
                  repeated.values.begin() + i * c_.D);
    }
    *rows = std::move(repeated);
  }

  void Attend(Grid& keys, Grid& values, int64_t S) {
    const int64_t B = c_.B, H = c_.H, T = c_.T, D = c_.D;
    scores_ = Grid(B, H, T, S);
    pattern_ = Grid(B, H, T, S);
    Grid z(B, H, T, D);
    const double hidden = -std::numeric_limits<double>::infinity();
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t i = 0; i < T; ++i) {
          for (int64_t j = 0; j < S; ++j) {
            double score = 0;
            for (int64_t d = 0; d < D; ++d)
              score += q_.at(b, h, i, d) * keys.at(b, KvHead(h), j, d);
            score = c_.round(score * Scale() + Bias(h, i, j));
            if (Has("odd_clipped_scores")) score = std::clamp(score, -0.5, 0.5);
            if (Has("odd_capped_scores")) score = 2 * std::tanh(score / 2);
            if (Has("odd_head_temperature")) score *= 1 + 0.3 * double(h);
            if (Has("odd_row_temperature")) score /= std::sqrt(double(1 + i));
            if (Has("odd_distance_decay")) score -= 0.1 * double(before_ + i - j);
            if (Has("odd_absolute_scores")) score = std::abs(score);
            if (Has("odd_base")) score *= std::log(2.5);
            const bool visible = Visible(b, h, i, j);
            if (Has("softcap_after_mask")) {
              score = 5 * std::tanh((visible ? score : hidden) / 5);
            } else if (Has("mask_01_added")) {
              score += visible;
            } else if (Has("mask_fill_too_weak")) {
              if (!visible) score = -1e-9;
            } else if (!visible && !Has("mask_after_softmax")) {
              score = hidden;
            } else if (Has("mask_convention_mixed")) {
              score = 0;
            }
            scores_.at(b, h, i, j) = score;
          }
        }
        if (Has("odd_two_best_keys")) KeepTwo(b, h, S);
        if (Has("softmax_axes_mixed")) {
          NormaliseMixed(b, h, S);
        } else if (Has("softmax_no_max")) {
          NormaliseBare(b, h, S);
        } else if (Has("softmax_tile_local_max")) {
          NormaliseTiles(b, h, S, 4);
        } else if (Has("softmax_axis_head")) {
          if (h + 1 < H) continue;
          for (int64_t each = 0; each < H; ++each) NormaliseHeads(b, each, S);
        } else {
          Normalise(b, h, S, &pattern_);
        }
        if (Has("odd_softmax_twice")) {
          for (int64_t i = 0; i < T; ++i) {
            for (int64_t j = 0; j < S; ++j) {
              if (Visible(b, h, i, j)) scores_.at(b, h, i, j) = pattern_.at(b, h, i, j);
            }
          }
          Normalise(b, h, S, &pattern_);
        }
      }
      for (int64_t h = 0; h < H; ++h) {
        if (Has("dropout_live_in_eval")) Drop(b, h, S, 1 / 0.7);
        if (Has("dropout_scaling_missing")) Drop(b, h, S, 1);
        for (int64_t i = 0; i < T; ++i) {
          for (int64_t j = 0; j < S; ++j) {
            double weight = pattern_.at(b, h, i, j);
            if (Has("odd_last_row_uniform") && i + 1 == T) weight = 1 / double(S);
            if (Has("odd_own_value_raised")) weight = 0.9 * weight + 0.1 * double(j == before_ + i);
            if (Has("odd_last_head_lost") && h + 1 == H) weight = 0;
            if (Has("mask_after_softmax") && !Visible(b, h, i, j)) weight = 0;
            if (Has("attention_transposed")) weight = pattern_.at(b, h, j, i);
            for (int64_t d = 0; d < D; ++d) {
              double value =
                  values.at(b, KvHead(h), Has("odd_values_of_before") && j > 0 ? j - 1 : j, d);
              if (Has("odd_positive_values")) value = std::max(value, 0.0);
              if (Has("odd_channels_reversed")) {
                value = values.at(b, KvHead(h), j, D - 1 - d);
              }
              z.at(b, h, i, d) += weight * value;
            }
          }
          for (int64_t d = 0; d < D; ++d) z.at(b, h, i, d) = c_.round(z.at(b, h, i, d));
        }
      }
    }
    Output(z);
  }

  void Normalise(int64_t b, int64_t h, int64_t S, Grid* pattern) {
    const bool columns = Has("softmax_axis_query");
    for (int64_t line = 0; line < (columns ? S : c_.T); ++line) {
      const int64_t n = columns ? c_.T : S;
      const auto entry = [&](Grid* grid, int64_t i) -> double& {
        return columns ? grid->at(b, h, i, line) : grid->at(b, h, line, i);
      };
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t i = 0; i < n; ++i) maximum = std::max(maximum, entry(&scores_, i));
      const auto weight = [&](int64_t i) {
        const double score = entry(&scores_, i);
        return Has("odd_sigmoid") ? 1 / (1 + std::exp(-score)) : std::exp(score - maximum);
      };
      for (int64_t i = 0; i < n; ++i) {
        sum += Has("odd_euclidean_sum") ? weight(i) * weight(i) : weight(i);
      }
      if (Has("odd_euclidean_sum")) sum = std::sqrt(sum);
      if (Has("softmax_plus_one_shift")) sum += 1;
      for (int64_t i = 0; i < n; ++i) entry(pattern, i) = c_.round(weight(i) / sum);
      // Padding that sees no key answers 0, where nobody forgot it.
      const bool empty = !c_.pads.empty() && std::isinf(maximum) && maximum < 0;
      const bool means = c_.empty_rows_are_means || Has("fully_masked_row_uniform");
      for (int64_t i = 0; i < n && empty && !Has("fully_masked_row_nan"); ++i) {
        entry(pattern, i) = means ? 1 / double(n) : 0;
      }
      if (empty && Has("mask_min_plus_min")) ShareWhatIsHiddenOnce(b, h, line, S, pattern);
    }
  }

  // Of query i: twice the least number is -inf, once it is all that is left.
  void ShareWhatIsHiddenOnce(int64_t b, int64_t h, int64_t i, int64_t S, Grid* pattern) const {
    const auto once = [&](int64_t j) { return (j > before_ + i) != !IsToken(b, j); };
    double count = 0;
    for (int64_t j = 0; j < S; ++j) count += once(j);
    for (int64_t j = 0; j < S; ++j) pattern->at(b, h, i, j) = once(j) / count;
  }

  // The maximum of each row, the sum of each column.
  void NormaliseMixed(int64_t b, int64_t h, int64_t S) {
    std::vector<double> sums(S);
    for (int64_t i = 0; i < c_.T; ++i) {
      double maximum = -std::numeric_limits<double>::infinity();
      for (int64_t j = 0; j < S; ++j) maximum = std::max(maximum, scores_.at(b, h, i, j));
      for (int64_t j = 0; j < S; ++j) {
        sums[j] += pattern_.at(b, h, i, j) = std::exp(scores_.at(b, h, i, j) - maximum);
      }
    }
    for (int64_t i = 0; i < c_.T; ++i) {
      for (int64_t j = 0; j < S; ++j) pattern_.at(b, h, i, j) /= sums[j];
    }
  }

  // A streaming softmax whose tiles weigh by their own maximum.
  void NormaliseTiles(int64_t b, int64_t h, int64_t S, int64_t tile) {
    for (int64_t i = 0; i < c_.T; ++i) {
      double running = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t first = 0; first < S; first += tile) {
        double own = -std::numeric_limits<double>::infinity();
        const int64_t last = std::min(first + tile, S);
        for (int64_t j = first; j < last; ++j) own = std::max(own, scores_.at(b, h, i, j));
        if (std::isinf(own)) continue;
        const double most = std::max(running, own);
        for (int64_t j = 0; j < first; ++j) pattern_.at(b, h, i, j) *= std::exp(running - most);
        sum *= std::exp(running - most);
        for (int64_t j = first; j < last; ++j) {
          sum += pattern_.at(b, h, i, j) = std::exp(scores_.at(b, h, i, j) - own);
        }
        running = most;
      }
      for (int64_t j = 0; j < S; ++j) pattern_.at(b, h, i, j) /= sum;
    }
  }

  // Softmax over the heads; hidden entries stay 0.
  void NormaliseHeads(int64_t b, int64_t h, int64_t S) {
    for (int64_t i = 0; i < c_.T; ++i) {
      for (int64_t j = 0; j < S; ++j) {
        double sum = 0;
        for (int64_t other = 0; other < c_.H; ++other) sum += std::exp(scores_.at(b, other, i, j));
        pattern_.at(b, h, i, j) = sum == 0 ? 0 : std::exp(scores_.at(b, h, i, j)) / sum;
      }
    }
  }

  // exp in float32 with nothing subtracted.
  void NormaliseBare(int64_t b, int64_t h, int64_t S) {
    for (int64_t i = 0; i < c_.T; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < S; ++j) sum += std::exp(float(scores_.at(b, h, i, j)));
      for (int64_t j = 0; j < S; ++j) {
        pattern_.at(b, h, i, j) = std::exp(float(scores_.at(b, h, i, j))) / sum;
      }
    }
  }

  // Of each row's scores all but the two highest are hidden.
  void KeepTwo(int64_t b, int64_t h, int64_t S) {
    for (int64_t i = 0; i < c_.T; ++i) {
      std::vector<double> row;
      for (int64_t j = 0; j < S; ++j) row.push_back(scores_.at(b, h, i, j));
      std::ranges::sort(row, std::greater());
      for (int64_t j = 0; j < S && S > 2; ++j) {
        double& score = scores_.at(b, h, i, j);
        if (score < row[1]) score = -std::numeric_limits<double>::infinity();
      }
    }
  }

  // p = 0.3.
  void Drop(int64_t b, int64_t h, int64_t S, double gain) {
    for (int64_t i = 0; i < c_.T; ++i) {
      for (int64_t j = 0; j < S; ++j) {
        const uint64_t at = static_cast<uint64_t>(((b * c_.H + h) * c_.T + i) * S + j);
        const bool kept = RandomUniform({c_.seed, 8, 0}, at) >= 0.3f;
        pattern_.at(b, h, i, j) *= kept ? gain : 0;
      }
    }
  }

  void Output(Grid& z) {
    y_ = Grid(c_.B, 1, c_.T, c_.C);
    merged_ = Grid(c_.B, 1, c_.T, c_.H * c_.D);
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t t = 0; t < c_.T; ++t) {
        for (int64_t o = 0; o < c_.C; ++o) {
          double sum = bias_[3].at(0, 0, 0, o);
          for (int64_t j = 0; j < c_.H * c_.D; ++j) {
            const int64_t h = Has("odd_heads_reversed") ? c_.H - 1 - j / c_.D : j / c_.D;
            double merged = z.at(b, h, t, j % c_.D);
            if (Has("heads_merged_untransposed")) {
              merged = z.values[(b * c_.T + t) * c_.H * c_.D + j];
            } else if (Has("heads_merged_wrong_lead")) {
              // Stacked [H, B], taken apart [B, H].
              const int64_t at = b * c_.H + h;
              merged = z.at(at % c_.B, at / c_.B, t, j % c_.D);
            }
            merged_.at(b, 0, t, j) = merged;
            sum += merged * weight_[3].at(0, 0, o, j);
          }
          y_.at(b, 0, t, o) = sum;
        }
      }
    }
  }

  const PlantedCase c_;
  const std::set<std::string> faults_;
  const std::function<double(double)> store_;
  uint32_t stream_ = 0;
  int64_t before_ = 0;  // keys before the first new one
  Grid x_, weight_[4], bias_[4], gain_[2], shift_[2], past_k_, past_v_, q_, scores_, pattern_;
  Grid merged_, y_;
};

// The same dump as other programs keep it.
enum class Keeping { kLinear, kConv1D, kFused, kFusedConv1D, kFusedPerHead, kFusedForTwo };

inline Array Turned(const Array& array) {
  const int64_t rows = array.shape[0], columns = array.shape[1];
  Array turned{{columns, rows}, std::vector<double>(array.values.size()), array.dtype};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      turned.values[c * rows + r] = array.values[r * columns + c];
    }
  }
  return turned;
}

inline TensorSet KeptAs(Keeping keeping, const PlantedCase& sizes, TensorSet set) {
  if (keeping == Keeping::kLinear) return set;
  if (keeping == Keeping::kConv1D) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      Array& weight = set[std::string(name) + ".weight"];
      weight = Turned(weight);
    }
    return set;
  }
  const int64_t heads[3] = {sizes.H, sizes.Hkv, sizes.Hkv};
  const char* const names[3] = {"q_proj", "k_proj", "v_proj"};
  const int64_t pieces = keeping == Keeping::kFusedPerHead  ? sizes.Hkv
                         : keeping == Keeping::kFusedForTwo ? 2
                                                            : 1;
  for (const std::string kind : {".weight", ".bias"}) {
    if (!set.tensors.contains("q_proj" + kind)) continue;
    Array fused;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      for (int p = 0; p < 3; ++p) {
        const Array& part = set[names[p] + kind];
        const auto each = static_cast<std::ptrdiff_t>(part.values.size()) / pieces;
        const auto first = part.values.begin() + piece * each;
        fused.values.insert(fused.values.end(), first, first + each);
      }
    }
    const int64_t rows = (heads[0] + heads[1] + heads[2]) * sizes.D;
    fused.shape =
        kind == ".weight" ? std::vector<int64_t>{rows, sizes.C} : std::vector<int64_t>{rows};
    for (const char* name : names) set.tensors.erase(name + kind);
    set["c_attn" + kind] = fused;
    set.Rename("o_proj" + kind, "c_proj" + kind);
  }
  if (keeping == Keeping::kFusedConv1D) {
    for (const char* name : {"c_attn.weight", "c_proj.weight"}) set[name] = Turned(set[name]);
  }
  return set;
}

inline double StoredAsFloat(double x) { return static_cast<float>(x); }
inline double StoredAsBf16(double x) { return Bf16ToFloat(DoubleToBf16(x)); }

// Choices that a seed makes, one after the other.
class Choice {
 public:
  Choice(uint64_t seed, uint32_t stream) : key_{seed, stream, 0} {}
  int64_t operator()(const std::vector<int64_t>& from) {
    return from[RandomBelow(key_, draw_++, from.size())];
  }
  // Small ones, among them those that hide a fault.
  PlantedCase Sizes(const std::vector<int64_t>& lengths) {
    PlantedCase sizes{.seed = key_.seed};
    sizes.B = (*this)({1, 2, 3});
    sizes.T = (*this)(lengths);
    sizes.P = (*this)({0, 0, 0, 4});
    sizes.Hkv = (*this)({1, 2, 3});
    sizes.H = sizes.Hkv * (*this)({1, 2, 3});
    sizes.D = (*this)({4, 6, 8, 16});
    sizes.C = (*this)({10, 18, 24, 32});
    return sizes;
  }

 private:
  RandomKey key_;
  uint64_t draw_ = 0;
};

// A random correct implementation: sizes, what it has, how it is kept, what is stated and how it is
// rounded.
inline TensorSet RandomCorrect(uint64_t seed) {
  Choice pick(seed, 11);
  PlantedCase sizes = pick.Sizes({1, 3, 5, 7, 12});
  sizes.rope = pick({0, 1, 1}) == 1;
  sizes.interleaved = pick({0, 1}) == 1;
  sizes.bias = pick({0, 1}) == 1;
  sizes.rotary_dim = pick({0, 1}) == 1 && sizes.D % 4 == 0 ? sizes.D / 2 : sizes.D;
  sizes.window = pick({0, 0, 3});
  sizes.theta = static_cast<double>(pick({10000, 500000, 100}));
  std::function<double(double)> store = StoredAsFloat;
  switch (pick({0, 1, 2, 3, 4})) {
    case 0:
      break;  // all in double
    case 1:
      sizes.round = StoredAsFloat;
      break;
    case 2:
      store = StoredAsBf16;
      break;
    case 3:
      store = StoredAsBf16;
      sizes.round = StoredAsFloat;
      break;
    default:
      store = StoredAsBf16;
      sizes.round = StoredAsBf16;
  }
  const auto keeping = static_cast<Keeping>(pick({0, 1, 2, 3, 4}));
  TensorSet set = KeptAs(keeping, sizes, PlantedAttention(sizes, {}, store).Dump());
  if (keeping == Keeping::kFusedPerHead) set.settings["qkv_layout"] = "per_head";
  for (const char* name : {"rope_pairing", "rope_first_position", "qkv_layout"}) {
    if (pick({0, 1}) == 1) set.settings.erase(name);
  }
  return set;
}

// The same with what a context may add.
inline TensorSet RandomCorrectInContext(uint64_t seed) {
  Choice pick(seed, 12);
  PlantedCase sizes = pick.Sizes({3, 5, 8, 12});
  sizes.alibi = pick({0, 0, 1}) == 1;
  sizes.rope = !sizes.alibi && pick({0, 1, 1}) == 1;
  sizes.interleaved = pick({0, 1}) == 1;
  sizes.rotary_dim = sizes.D;
  sizes.window = pick({0, 0, 3});
  for (int64_t b = 0; b < sizes.B; ++b) sizes.pads.push_back(pick({-2, 0, 1, 2}));
  if (pick({0, 1, 1}) == 0) sizes.pads.clear();
  sizes.empty_rows_are_means = pick({0, 1}) == 1;
  if (sizes.P == 0 && sizes.pads.empty()) {
    for (int64_t b = 0; b < sizes.B; ++b) {
      sizes.documents.emplace_back();
      const int64_t length = pick({2, 3, 20});
      for (int64_t t = 0; t < sizes.T; ++t) sizes.documents[b].push_back(t / length);
    }
  }
  sizes.states_positions = pick({0, 1}) == 1;
  sizes.norm = static_cast<PlantedCase::Norm>(pick({0, 1, 2}));
  sizes.norm_gain = pick({0, 1}) == 1;
  sizes.norm_all_heads = sizes.norm_gain && pick({0, 1}) == 1;
  sizes.norm_layer = pick({0, 1}) == 1;
  sizes.norm_bias = sizes.norm_layer && sizes.norm_gain && pick({0, 1}) == 1;
  const bool bf16 = pick({0, 1}) == 1;
  if (pick({0, 1}) == 1) sizes.round = StoredAsFloat;
  std::set<std::string> results = {"y"};
  for (const char* result : {"q_rot", "scores", "pattern"}) {
    if (pick({0, 1}) == 1) results.insert(result);
  }
  const auto store = bf16 ? StoredAsBf16 : StoredAsFloat;
  TensorSet set = PlantedAttention(sizes, {}, store).Dump(results);
  // A norm without gains must be stated.
  const bool told = sizes.norm_gain && pick({0, 1}) == 1;
  for (const char* name : {"qk_norm", "norm_eps", "qk_layernorm"}) {
    if (told) set.settings.erase(name);
  }
  if (pick({0, 1}) == 1) set.settings.erase("rope_pairing");
  return set;
}

}  // namespace heed
