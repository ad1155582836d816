// What is asked of a whole model, as functions that give the size of the error: 0, or a figure to
// hold against a bound. The tests of the models call them, and so do the planted faults, which
// show that each figure grows when something is wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/cache.h"
#include "optim/adamw.h"
#include "support/compare.h"
#include "support/golden_model.h"
#include "support/mixes.h"

namespace heed {

// Of the largest number; gradients of each tensor's largest; AdamW's path of the largest parameter.
constexpr double kForwardBound = 2e-5;
constexpr double kGradientBound = 2e-4;
constexpr double kTrajectoryBound = 1e-3;

// A golden case on some kernels, ready to run.
struct GoldenRun {
  Golden golden;
  std::unique_ptr<Gpt> model;
  std::vector<int32_t> tokens, targets;  // [B, T]
  int64_t B = 0, T = 0, counted = 0;
  std::unique_ptr<Activations> activations;

  GoldenRun(const std::string& name, const Kernels& kernels) : golden(Golden::Load(name)) {
    model = GoldenModel(golden, kernels);
    tokens = golden.Tokens("tokens");
    targets = golden.Tokens("targets");
    B = golden.file.Find("tokens")->shape[0];
    T = golden.file.Find("tokens")->shape[1];
    counted = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    EXPECT_TRUE(model->parameters().AllocateGradients());
    activations = *Activations::Create(*model, B, T, /*training=*/true);
  }

  // Mean loss, with gradients.
  double LossAndBackward() {
    Pass pass = model->NewPass(B, T);
    pass.training = true;
    const auto scale = 1.0f / static_cast<float>(counted);
    return model->LossAndBackward(pass, tokens.data(), targets.data(), scale, activations.get()) /
           static_cast<double>(counted);
  }
};

// A NaN counts as an error without end.
inline double Worse(double a, double b) {
  return std::isnan(b) || b > a ? (std::isnan(b) ? HUGE_VAL : b) : a;
}

inline double ShareOf(double got, double want) { return std::abs(got - want) / std::abs(want); }

// The largest error of the logits, as a share of the largest logit.
inline double GoldenLogitsError(const std::string& name, const Kernels& kernels) {
  const GoldenRun run(name, kernels);
  return RelativeError(FullLogits(*run.model, run.tokens, run.B),
                       run.golden.Doubles("expect.logits"));
}

inline double GoldenLossError(const std::string& name, const Kernels& kernels) {
  const GoldenRun run(name, kernels);
  const double loss = run.model->Loss(run.model->NewPass(run.B, run.T), run.tokens.data(),
                                      run.targets.data(), run.activations.get());
  return ShareOf(loss / static_cast<double>(run.counted), run.golden.Doubles("expect.loss")[0]);
}

// The worst tensor's largest error, as a share of its largest gradient.
inline double GoldenGradientError(const std::string& name, const Kernels& kernels) {
  GoldenRun run(name, kernels);
  double worst = ShareOf(run.LossAndBackward(), run.golden.Doubles("expect.loss")[0]);
  for (const Parameter& p : run.model->parameters().all()) {
    const std::vector<float> got(p.grad, p.grad + p.elements);
    worst = Worse(worst, RelativeError(got, run.golden.Doubles("grad." + p.name)));
  }
  return worst;
}

// The part of a name that its layer's tensors share: "h.1." of "h.1.attn.c_attn.bias".
inline std::string LayerOf(const std::string& name) {
  const size_t digit = name.find_first_of("0123456789");
  return digit == std::string::npos ? "" : name.substr(0, name.find('.', digit) + 1);
}

// 1e-7 of the largest true gradient in p's layer. Below it no float32 arithmetic can follow: AdamW
// divides rounding noise by rounding noise there. Mostly the key third of a fused bias without
// rotation, where a constant per row cancels in softmax.
inline double LeastGradient(const GoldenRun& run, const Parameter& p) {
  double largest = 0;
  for (const Parameter& neighbour : run.model->parameters().all()) {
    if (LayerOf(neighbour.name) != LayerOf(p.name)) continue;
    for (const double g : run.golden.Doubles("grad." + neighbour.name)) {
      largest = std::max(largest, std::abs(g));
    }
  }
  return 1e-7 * largest;
}

// AdamW's path over the case's steps: the worst of losses, gradient norms and final parameters.
inline double GoldenTrajectoryError(const std::string& name, const Kernels& kernels) {
  GoldenRun run(name, kernels);
  const nlohmann::json adamw = run.golden.Json("adamw");
  const AdamwSettings settings{adamw["beta1"], adamw["beta2"], adamw["eps"], adamw["weight_decay"],
                               adamw["clip"]};
  auto optimizer = *Adamw::Create(&run.model->parameters());
  const nlohmann::json losses = run.golden.Json("losses"), norms = run.golden.Json("grad_norms");
  double worst = 0;
  for (int step = 0; step < adamw["steps"]; ++step) {
    worst = Worse(worst, ShareOf(run.LossAndBackward(), losses[step]));
    const double norm = GradientNorm(kernels, run.model->parameters());
    worst = Worse(worst, ShareOf(norm, norms[step]));
    optimizer->Step(kernels, settings, adamw["lr"], norm);
  }
  for (const Parameter& p : run.model->parameters().all()) {
    std::vector<float> got(p.data, p.data + p.elements);
    std::vector<double> want = run.golden.Doubles("after." + p.name);
    const std::vector<double> gradient = run.golden.Doubles("grad." + p.name);
    const double least = LeastGradient(run, p);
    for (int64_t i = 0; i < p.elements; ++i) {
      if (std::abs(gradient[i]) < least) got[i] = static_cast<float>(want[i] = 0);
    }
    worst = Worse(worst, RelativeError(got, want));
  }
  return worst;
}

// Changes one token at a time and counts the positions before it whose logits changed in any bit,
// and the tokens whose change moved nothing at all.
inline int64_t CausalityBreaks(const Gpt& model, const std::vector<int32_t>& tokens, int64_t B) {
  const auto T = static_cast<int64_t>(tokens.size()) / B;
  const int64_t V = model.config().vocab_size;
  const std::vector<float> base = FullLogits(model, tokens, B);
  int64_t breaks = 0;
  for (const int64_t t : {int64_t{1}, T / 2, T - 1}) {
    std::vector<int32_t> changed = tokens;
    for (int64_t b = 0; b < B; ++b) {
      int32_t& token = changed[b * T + t];
      token = static_cast<int32_t>((token + 1 + b) % V);
    }
    const std::vector<float> logits = FullLogits(model, changed, B);
    for (int64_t b = 0; b < B; ++b) {
      const int64_t row = b * T * V;
      for (int64_t s = 0; s < t; ++s) {
        breaks += !SameBits(&base[row + s * V], &logits[row + s * V], V);
      }
      breaks += SameBits(&base[row + t * V], &logits[row + t * V], (T - t) * V);
    }
  }
  return breaks;
}

// logits [B, T, V] of tokens [B, T] read through a cache in pieces of the given sizes.
inline std::vector<float> CachedLogits(const Gpt& model, const std::vector<int32_t>& tokens,
                                       int64_t B, const std::vector<int64_t>& pieces) {
  const auto T = static_cast<int64_t>(tokens.size()) / B;
  const int64_t V = model.config().vocab_size;
  std::vector<float> all(B * T * V);
  // Rows before and after, and room behind: the views of a cache are never the whole of it.
  auto cache = *KvCache::Create(model.config(), B + 2, T + 3);
  auto activations = *Activations::Create(model, B, T, /*training=*/false);
  int64_t at = 0;
  for (const int64_t n : pieces) {
    std::vector<int32_t> piece;
    for (int64_t b = 0; b < B; ++b) {
      piece.insert(piece.end(), &tokens[b * T + at], &tokens[b * T + at] + n);
    }
    Pass pass = model.NewPass(B, n);
    const std::vector<KeyValueCache> layers = cache->Extend(1, B, n, &pass.offsets);
    const float* x = model.Forward(pass, piece.data(), activations.get(), layers);
    std::vector<float> logits(B * n * V);
    model.Logits(pass, x, B * n, activations.get(), logits.data());
    for (int64_t b = 0; b < B; ++b) {
      std::copy_n(&logits[b * n * V], n * V, &all[(b * T + at) * V]);
    }
    at += n;
  }
  EXPECT_EQ(at, T);
  return all;
}

// The largest difference of any logit between the pieces of CachedLogits and the whole pass.
inline double CacheError(const Gpt& model, const std::vector<int32_t>& tokens, int64_t B,
                         const std::vector<int64_t>& pieces) {
  const std::vector<float> want = FullLogits(model, tokens, B);
  const std::vector<float> got = CachedLogits(model, tokens, B, pieces);
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = Worse(worst, std::abs(got[i] - want[i]));
  return worst;
}

// Whether the last positions' logits have the bits of the whole pass where nothing more is asked of
// the last block, behind a cache whose earlier piece was asked for nothing, and without one.
inline void ExpectLastOutputsAreThoseOfAll(const Gpt& model, int64_t T) {
  const std::vector<int32_t> tokens = RandomTokens(T, model.config().vocab_size);
  const std::vector<float> want = FullLogits(model, tokens, 1);
  const int64_t V = model.config().vocab_size;
  auto activations = *Activations::Create(model, 1, T, /*training=*/false);
  for (const int64_t first : {int64_t{0}, int64_t{1}, T / 2, T - 1}) {
    for (const int64_t held : {int64_t{0}, first / 2, first}) {
      auto cache = *KvCache::Create(model.config(), 1, T);
      const auto read = [&](int64_t from, int64_t to, int64_t outputs) {
        Pass pass = model.NewPass(1, to - from);
        pass.first_output = pass.T - outputs;
        std::vector<KeyValueCache> layers;
        if (held > 0) layers = cache->Extend(0, 1, pass.T, &pass.offsets);
        return std::pair(pass, model.Forward(pass, &tokens[from], activations.get(), layers));
      };
      if (held > 0) read(0, held, 0);
      const auto [pass, x] = read(held, T, T - first);
      std::vector<float> logits((T - first) * V);
      model.Logits(pass, x, T - first, activations.get(), logits.data());
      EXPECT_TRUE(SameBits(logits.data(), &want[first * V], (T - first) * V))
          << first << " of " << T << " behind " << held;
    }
  }
}

// The largest difference between two passes of the kind that `make_pass` gives for (step), and
// between them and the pass of a model without dropout: 0 in eval.
inline double EvalDropoutError(
    const ModelConfig& config, const Kernels& kernels,
    const std::function<Pass(const Gpt&, int64_t B, int64_t T)>& new_pass) {
  ModelConfig plain = config;
  plain.dropout = 0;
  const auto dropped = NoisyModel(config, kernels), model = NoisyModel(plain, kernels);
  constexpr int64_t kB = 5, kT = 13;
  const std::vector<int32_t> tokens = RandomTokens(kB * kT, config.vocab_size);
  const std::vector<float> want = FullLogits(*model, tokens, kB);
  auto activations = *Activations::Create(*dropped, kB, kT, /*training=*/true);
  double worst = 0;
  for (const uint32_t step : {0u, 1u}) {
    Pass pass = new_pass(*dropped, kB, kT);
    pass.step = step;
    std::vector<float> logits(want.size());
    const float* x = dropped->Forward(pass, tokens.data(), activations.get());
    dropped->Logits(pass, x, kB * kT, activations.get(), logits.data());
    for (size_t i = 0; i < want.size(); ++i) worst = Worse(worst, std::abs(logits[i] - want[i]));
  }
  return worst;
}

}  // namespace heed
