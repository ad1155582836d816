// A GPT in plain loops, with faults that can be planted in it.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/folder.h"
#include "model/gpt.h"
#include "support/planted_dump.h"
#include "support/temporary_folder.h"

namespace heed {

// GPT-2's blocks with learned, sinusoidal or rotary positions (in halves), and grouped heads.
class PlainGpt {
 public:
  PlainGpt(ParameterSet& parameters, const ModelConfig& config, const std::string& fault)
      : p_(parameters), c_(config), fault_(fault) {}

  // Logits [B, T, V] of tokens [B, T].
  std::vector<double> Of(const std::vector<double>& tokens, int64_t B) {
    logits_.clear();
    const auto T = static_cast<int64_t>(tokens.size()) / B;
    for (int64_t b = 0; b < B; ++b) {
      const auto first = tokens.begin() + b * T;
      Run({first, first + T});
    }
    return logits_;
  }

 private:
  using Rows = std::vector<std::vector<double>>;

  bool Has(const char* fault) const { return fault_ == fault; }
  const float* Data(const std::string& name) const { return p_.Find(name)->data; }

  Rows Linear(const Rows& x, const std::string& name) const {
    const Parameter* bias = p_.Find(name + ".bias");
    const float* w = Data(name + ".weight");
    const int64_t out = bias->elements;
    Rows y(x.size(), std::vector<double>(bias->data, bias->data + out));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) {
        for (int64_t j = 0; j < out; ++j) y[t][j] += x[t][i] * double(w[int64_t(i) * out + j]);
      }
    }
    return y;
  }

  Rows Normed(Rows x, const std::string& name) const {
    const float *gain = Data(name + ".weight"), *bias = Data(name + ".bias");
    for (std::vector<double>& row : x) {
      const auto C = double(row.size());
      double mean = 0, squares = 0;
      for (const double v : row) mean += v / C;
      for (const double v : row) squares += (v - mean) * (v - mean) / C;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] =
            (row[i] - mean) / std::sqrt(squares + c_.norm_eps) * double(gain[i]) + double(bias[i]);
      }
    }
    return x;
  }

  // Head `h` of D channels from `first` on, turned by its position.
  void Rotate(std::vector<double>* row, int64_t first, double position) const {
    const int64_t half = c_.head_dim / 2;
    if (Has("rope_scaling_missing")) position *= 4;
    for (int64_t i = 0; i < half; ++i) {
      const double a = position * std::pow(c_.rope_theta, -double(i) / double(half));
      double &x0 = (*row)[first + i], &x1 = (*row)[first + i + half];
      const double old = x0;
      x0 = old * std::cos(a) - x1 * std::sin(a);
      x1 = old * std::sin(a) + x1 * std::cos(a);
    }
  }

  // Key rows that were in pairs for n_kv_head heads, made halves as of n_head heads.
  void ReorderKeys(std::vector<double>* row, int64_t first) const {
    const int64_t D = c_.head_dim, rows = c_.n_kv_head * D, wrong = rows / c_.n_head;
    const std::vector<double> halves(row->begin() + first, row->begin() + first + rows);
    for (int64_t to = 0; to < rows; ++to) {
      const int64_t pair = to % (wrong / 2), second = to % wrong / (wrong / 2);
      const int64_t between = to / wrong * wrong + 2 * pair + second;
      (*row)[first + to] = halves[between / D * D + between % 2 * (D / 2) + between % D / 2];
    }
  }

  Rows Attended(const Rows& x, const std::string& name) const {
    const int64_t D = c_.head_dim, group = c_.n_head / c_.n_kv_head;
    const int64_t k0 = c_.n_head * D, v0 = k0 + c_.n_kv_head * D;
    Rows qkv = Linear(x, name + ".c_attn");
    for (size_t t = 0; t < x.size(); ++t) {
      if (Has("rope_permute_gqa")) ReorderKeys(&qkv[t], k0);
      for (int64_t h = 0; h < c_.n_head + c_.n_kv_head && c_.position == Position::kRope; ++h) {
        Rotate(&qkv[t], h * D, double(t));
      }
    }
    Rows z(x.size(), std::vector<double>(k0));
    for (int64_t h = 0; h < c_.n_head; ++h) {
      const int64_t k = k0 + h / group * D, v = v0 + h / group * D;
      for (size_t i = 0; i < x.size(); ++i) {
        double sum = 0;
        std::vector<double> weights;
        for (size_t j = 0; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += qkv[i][h * D + d] * qkv[j][k + d];
          weights.push_back(score / std::sqrt(double(D)));
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        for (size_t j = 0; j <= i; ++j) {
          for (int64_t d = 0; d < D; ++d) z[i][h * D + d] += weights[j] / sum * qkv[j][v + d];
        }
      }
    }
    return Linear(z, name + ".c_proj");
  }

  Rows FedForward(const Rows& x, const std::string& name) const {
    Rows hidden = Linear(x, name + ".c_fc");
    for (std::vector<double>& row : hidden) {
      for (double& v : row) {
        v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
      }
    }
    return Linear(hidden, name + ".c_proj");
  }

  static Rows Sum(Rows a, const Rows& b) {
    for (size_t t = 0; t < a.size(); ++t) {
      for (size_t i = 0; i < a[t].size(); ++i) a[t][i] += b[t][i];
    }
    return a;
  }

  // What is added to the embedding's channel i at position t.
  double PositionAt(int64_t t, int64_t i) const {
    const int64_t C = c_.n_embd;
    const int64_t row = t + (Has("position_offset_one") ? 1 : Has("position_offset_two") ? 2 : 0);
    if (c_.position == Position::kRope || Has("position_missing")) return 0;
    if (c_.position == Position::kLearned) return Data("wpe.weight")[row * C + i];
    // Vaswani et al. 2017: sine and cosine of one frequency side by side.
    const bool split = Has("sinusoidal_layout");
    const int64_t pair = split ? i % (C / 2) : i / 2;
    const bool sine = split ? i < C / 2 : i % 2 == 0;
    const double angle = double(row) * std::pow(10000, -2 * double(pair) / double(C));
    return sine ? std::sin(angle) : std::cos(angle);
  }

  void Run(const std::vector<double>& tokens) {
    const int64_t C = c_.n_embd;
    const float* wte = Data("wte.weight");
    const double factor = Has("embedding_scale") ? std::sqrt(double(C)) : 1;
    Rows x(tokens.size(), std::vector<double>(C));
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int64_t i = 0; i < C; ++i) {
        x[t][i] = factor * double(wte[int64_t(tokens[t]) * C + i]) + PositionAt(int64_t(t), i);
      }
    }
    for (int64_t l = 0; l < c_.n_layer; ++l) {
      const std::string name = "h." + std::to_string(l);
      for (const bool mlp : {false, true}) {
        const std::string norm = name + (mlp ? ".ln_2" : ".ln_1");
        const auto branch = [&](const Rows& in) {
          return mlp ? FedForward(in, name + ".mlp") : Attended(in, name + ".attn");
        };
        const Rows normed = Normed(x, norm);
        if (Has("norm_after_branch")) {
          x = Normed(Sum(x, branch(x)), norm);
        } else if (Has("residual_from_normed")) {
          x = Sum(normed, branch(normed));
        } else if (Has("norm_argument_wrong")) {
          x = Sum(x, branch(Sum(normed, x)));
        } else if (Has("residual_missing") && !mlp) {
          x = branch(normed);
        } else {
          x = Sum(x, branch(normed));
        }
      }
    }
    if (!Has("final_norm_missing")) x = Normed(x, "ln_f");
    const float* head = c_.tied || Has("head_untied") ? wte : Data("lm_head.weight");
    for (const std::vector<double>& row : x) {
      for (int64_t v = 0; v < c_.vocab_size; ++v) {
        double z = 0;
        for (int64_t i = 0; i < C; ++i) z += row[i] * double(head[v * C + i]);
        logits_.push_back(z);
      }
    }
  }

  ParameterSet& p_;
  const ModelConfig c_;
  const std::string fault_;
  std::vector<double> logits_;
};

// A random model in a folder and a batch of tokens, of sizes of their own for each seed.
class PlantedModel {
 public:
  PlantedModel(uint32_t seed, Position position, bool tied) : B_(1 + seed), T_(8 + seed) {
    ModelConfig config{.n_layer = 2,
                       .n_head = 2 + 2 * int64_t(seed % 2),
                       .n_kv_head = 2,
                       .n_embd = 16 + 8 * int64_t(seed),
                       .block_size = T_ + 3,
                       .vocab_size = 17 + int64_t(seed)};
    config.position = position;
    config.tied = tied;
    // Grouped, with heads that can be taken for twice as many.
    if (position == Position::kRope) {
      config.n_head = 4;
      config.n_embd = 16 + 16 * int64_t(seed);
    }
    model_ = std::move(*Gpt::Create(config, ReferenceKernels()));
    uint32_t stream = 0;
    for (Parameter& p : model_->parameters().all()) {
      const RandomKey key{seed, 5, stream++};
      const bool gain = p.name.find("ln_") != std::string::npos && p.name.ends_with("weight");
      for (int64_t i = 0; i < p.elements; ++i) {
        p.data[i] = float((gain ? 1 : 0) + 0.25 * RandomNormal(key, i));
      }
    }
    const Status saved = SaveModel(Folder(), *model_, nullptr, false);
    if (!saved) throw std::runtime_error(saved.error().Message());
    for (int64_t i = 0; i < B_ * T_; ++i) {
      tokens_.push_back(double(RandomBelow({seed, 6, 0}, i, config.vocab_size)));
    }
  }

  std::string Folder() const { return folder_.path() + "/model"; }

  TensorSet Set(const std::string& fault, DType dtype) const {
    TensorSet set;
    set["tokens"] = {{B_, T_}, tokens_, DType::kI64};
    set["logits"] = {{B_, T_, model_->config().vocab_size},
                     PlainGpt(model_->parameters(), model_->config(), fault).Of(tokens_, B_),
                     dtype};
    return set;
  }

 private:
  int64_t B_, T_;
  TemporaryFolder folder_;
  std::unique_ptr<Gpt> model_;
  std::vector<double> tokens_;
};

}  // namespace heed
