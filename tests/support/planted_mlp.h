// Feed-forward layers of GPT-2 and Llama in plain loops.
#pragma once

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "support/planted_dump.h"

namespace heed {

struct MlpDump {
  using Numbers = std::vector<double>;

  static constexpr int64_t kB = 2, kT = 7;
  size_t C, F;
  DType dtype;
  Numbers x, fc, proj, fc_bias, proj_bias, gate;

  MlpDump(uint32_t seed, size_t width, size_t inner, DType type) : C(width), F(inner), dtype(type) {
    Draw draw(seed, dtype);
    x = draw.Normal(kB * kT * C);
    fc = draw.Normal(C * F, 1 / std::sqrt(double(C)));
    gate = draw.Normal(C * F, 1 / std::sqrt(double(C)));
    proj = draw.Normal(C * F, 1 / std::sqrt(double(F)));
    fc_bias = draw.Normal(F, 0.3);
    proj_bias = draw.Normal(C, 0.3);
  }

  static double Tanh(double x) {
    const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1 + std::tanh(inner));
  }
  static double Erf(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
  static double Silu(double x) { return x / (1 + std::exp(-x)); }

  Numbers Gpt2(double (*act)(double), bool in_out = true, bool with_bias = true,
               bool turned = false) const {
    Numbers h = Plus(Times(x, fc, C, in_out != turned), fc_bias);
    for (double& value : h) value = act(value);
    const Numbers y = Times(h, proj, F, in_out);
    return with_bias ? Plus(y, proj_bias) : y;
  }

  Numbers Llama(const std::function<double(double gate, double up)>& hidden,
                bool turned_gate = false) const {
    const Numbers g = Times(x, gate, C, turned_gate);
    Numbers h = Times(x, fc, C, false);
    for (size_t i = 0; i < h.size(); ++i) h[i] = hidden(g[i], h[i]);
    return Times(h, proj, F, false);
  }

  TensorSet Gpt2Set(const Numbers& y, bool in_out = true) const {
    const auto c = int64_t(C), f = int64_t(F);
    TensorSet set;
    set["x"] = Of(x, {kB, kT, c});
    set["h.3.mlp.c_fc.weight"] = Of(fc, in_out ? std::vector{c, f} : std::vector{f, c});
    set["h.3.mlp.c_fc.bias"] = Of(fc_bias, {f});
    set["h.3.mlp.c_proj.weight"] = Of(proj, in_out ? std::vector{f, c} : std::vector{c, f});
    set["h.3.mlp.c_proj.bias"] = Of(proj_bias, {c});
    set["y"] = Of(y, {kB, kT, c});
    return set;
  }

  TensorSet LlamaSet(const Numbers& y) const {
    const auto c = int64_t(C), f = int64_t(F);
    TensorSet set;
    set["x"] = Of(x, {kB, kT, c});
    set["gate_proj.weight"] = Of(gate, {f, c});
    set["up_proj.weight"] = Of(fc, {f, c});
    set["down_proj.weight"] = Of(proj, {c, f});
    set["y"] = Of(y, {kB, kT, c});
    set.settings["mlp"] = "swiglu";
    return set;
  }

  Array Of(const Numbers& values, std::vector<int64_t> shape) const {
    return {std::move(shape), values, dtype};
  }

 private:
  // x [rows, in] by w, stored [in, out] or [out, in].
  static Numbers Times(const Numbers& x, const Numbers& w, size_t in, bool in_out) {
    const size_t out = w.size() / in;
    Numbers y(x.size() / in * out);
    for (size_t r = 0; r < x.size() / in; ++r) {
      for (size_t j = 0; j < out; ++j) {
        for (size_t i = 0; i < in; ++i) {
          y[r * out + j] += x[r * in + i] * (in_out ? w[i * out + j] : w[j * in + i]);
        }
      }
    }
    return y;
  }

  static Numbers Plus(Numbers y, const Numbers& bias) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
    return y;
  }
};

}  // namespace heed
