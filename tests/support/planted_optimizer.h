// One update of AdamW in plain loops, with faults that can be planted in it.
#pragma once

#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "support/planted_dump.h"

namespace heed {

struct OptimizerDump {
  using Numbers = std::vector<double>;

  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;
  struct Tensor {
    std::vector<int64_t> shape;
    Numbers p, g, m, v;
    Numbers micro;  // gradients of micro-batches, [kMicroBatches, ..], or empty
  };
  static constexpr int64_t kMicroBatches = 3;

  std::map<std::string, Tensor> tensors;
  DType dtype;
  int64_t step;
  double clip, rate = 1e-2, decay = 0.1;
  // Linear warm-up to `rate`, then half a cosine down to a tenth of it; none where 0.
  int64_t warmup = 0, decay_until = 0;

  // Gradients of the given size, moments as after `at` - 1 steps.
  OptimizerDump(uint32_t seed, DType type, double size, int64_t at = 1, double limit = 0)
      : dtype(type), step(at), clip(limit) {
    Draw draw(seed, type);
    const int64_t V = 12 + seed, C = 6 + 2 * int64_t(seed), F = 30 + int64_t(seed);
    const std::map<std::string, std::vector<int64_t>> shapes = {
        {"wte.weight", {V, C}}, {"h.0.ln_1.weight", {F}}, {"h.0.attn.c_attn.weight", {C, 3 * C}}};
    for (const auto& [name, shape] : shapes) {
      const size_t n = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
      Tensor t{shape, draw.Normal(n, 0.1, shape.size() == 1 ? 1 : 0), draw.Normal(n, size)};
      t.m.resize(n);
      t.v.resize(n);
      if (step > 1) {
        t.m = draw.Normal(n, size / 2);
        t.v = draw.Normal(n, size);
        for (double& x : t.v) x *= x;
        t.v = AsStored(type, t.v);
      }
      tensors[name] = std::move(t);
    }
  }

  // Gradients are joined from micro-batches as `fault` says: their mean when right.
  void DrawMicroBatches(uint32_t seed, const std::string& fault) {
    Draw draw(seed + 11, dtype);
    for (auto& [name, t] : tensors) {
      const size_t n = t.p.size();
      t.micro = draw.Normal(kMicroBatches * n, 0.05);
      t.g.assign(n, 0);
      for (int64_t i = fault == "zero_grad_misplaced" ? kMicroBatches - 1 : 0; i < kMicroBatches;
           ++i) {
        const double factor = fault == "accumulation_not_averaged" ? 1 : 1.0 / kMicroBatches;
        for (size_t j = 0; j < n; ++j) t.g[j] += t.micro[i * n + j] * factor;
      }
    }
  }

  // Of update `at`, counted from 1.
  double RateOf(int64_t at, const std::string& fault) const {
    if (fault == "schedule_zero_start") return 0;
    if (warmup == 0) return rate;
    const double it = double(at - 1 + (fault == "schedule_off_by_one" ? 1 : 0));
    if (it < double(warmup)) return rate * (it + 1) / double(warmup + 1);
    if (it >= double(decay_until)) return rate / 10;
    const double share = (it - double(warmup)) / double(decay_until - warmup);
    return rate / 10 + (rate - rate / 10) * (1 + std::cos(std::numbers::pi * share)) / 2;
  }

  Numbers After(const Tensor& t, const std::string& fault) const {
    double squares = 0;
    for (const auto& [name, other] : tensors) {
      for (const double g : other.g) squares += g * g;
    }
    const double limit = clip / (std::sqrt(squares) + (fault == "bare norm" ? 0 : 1e-6));
    double scale = clip > 0 && limit < 1 && fault != "clip_misplaced" ? limit : 1;
    if (fault == "accumulation_not_averaged" && t.micro.empty()) scale *= 4;
    const bool fresh = fault == "resume_partial";
    const double at = fresh ? 1 : double(step), now = RateOf(step, fault);
    const bool swapped = fault == "adam_betas_swapped";
    const double beta1 = swapped ? kBeta2 : kBeta1, beta2 = swapped ? kBeta1 : kBeta2;
    const double pull = fault == "decay_without_rate" ? decay : now * decay;
    const double sign = fault == "gradient_sign" ? -1 : 1;
    Numbers after;
    for (size_t i = 0; i < t.p.size(); ++i) {
      const bool decays =
          (t.shape.size() == 2 || fault == "decay_on_norms") && fault != "decay_missing";
      const double pulled = fault == "decay_coupled" && decays ? decay * t.p[i] : 0;
      const double g = t.g[i] * scale + pulled;
      const double m = beta1 * (fresh ? 0 : t.m[i]) + (1 - beta1) * g;
      const double v = beta2 * (fresh || fault == "v lost" ? 0 : t.v[i]) + (1 - beta2) * g * g;
      const bool raw = fault == "adam_bias_correction";
      const double hat_m = raw ? m : m / (1 - std::pow(beta1, at));
      const double hat_v = raw ? v : v / (1 - std::pow(beta2, at));
      const double divisor = fault == "adam_eps_place" ? std::sqrt(hat_v + kEps)
                             : fault == "eps first"
                                 ? std::sqrt(hat_v + kEps / (1 - std::pow(beta2, at)))
                                 : std::sqrt(hat_v) + kEps;
      const double kept = decays && fault != "decay_coupled" ? t.p[i] * (1 - pull) : t.p[i];
      after.push_back(kept - sign * now * hat_m / divisor);
    }
    return after;
  }

  TensorSet Set(const std::string& fault) const {
    TensorSet set;
    for (const auto& [name, t] : tensors) {
      set[name] = {t.shape, t.p, dtype};
      set["grad." + name] = {t.shape, t.g, dtype};
      if (!t.micro.empty()) {
        std::vector<int64_t> shape = t.shape;
        shape.insert(shape.begin(), kMicroBatches);
        set["grad." + name] = {shape, t.micro, dtype};
      }
      set["after." + name] = {t.shape, After(t, fault), dtype};
      if (step == 1) continue;
      set["m." + name] = {t.shape, t.m, dtype};
      set["v." + name] = {t.shape, t.v, dtype};
    }
    set.settings = {{"learning_rate", std::to_string(rate)},
                    {"beta1", "0.9"},
                    {"beta2", "0.95"},
                    {"eps", "1e-8"},
                    {"weight_decay", std::to_string(decay)},
                    {"step", std::to_string(step)},
                    {"grad_clip", std::to_string(clip)}};
    if (warmup == 0) return set;
    set.settings["warmup_iters"] = std::to_string(warmup);
    set.settings["lr_decay_iters"] = std::to_string(decay_until);
    set.settings["min_lr"] = std::to_string(rate / 10);
    return set;
  }
};

}  // namespace heed
