#include "verify/diagnose/fault_examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"
#include "verify/diagnose/loss_diagnosis.h"
#include "verify/diagnose/mlp_diagnosis.h"
#include "verify/diagnose/model_diagnosis.h"
#include "verify/diagnose/norm_diagnosis.h"
#include "verify/diagnose/optimizer_diagnosis.h"
#include "verify/diagnose/sampler_diagnosis.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;
using View = Result<std::optional<FaultView>> (*)(const TensorFile&, const SettingTexts&,
                                                  const std::string&);

// ------------------------------------------------------------------ dumps in memory

class Example {
 public:
  Example(View view, SettingTexts settings) : view_(view), settings_(std::move(settings)) {}

  Example& Add(const std::string& name, const std::vector<int64_t>& shape, const Numbers& values) {
    return Store<double>(name, "F64", shape, values);
  }
  Example& AddIds(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& ids) {
    return Store<int64_t>(name, "I64", shape, ids);
  }
  // Normal numbers.
  Example& Draw(const std::string& name, const std::vector<int64_t>& shape, double mean,
                double deviation) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Numbers values(count);
    const RandomKey key{17, 3, draws_++};
    for (int64_t i = 0; i < count; ++i) values[i] = mean + deviation * RandomNormal(key, i);
    return Add(name, shape, values);
  }

  std::optional<FaultView> ViewOf(const std::string& id) const {
    const std::string header = "{" + entries_ + "}";
    const uint64_t length = header.size();
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    bytes += header + data_;
    const auto file = TensorFile::Parse(std::as_bytes(std::span(bytes)), "example");
    if (!file) return std::nullopt;
    const auto view = view_(*file, settings_, id);
    return view ? *view : std::nullopt;
  }

 private:
  template <class T>
  Example& Store(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
                 const std::vector<T>& values) {
    const size_t first = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    entries_ += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            entries_.empty() ? "" : ",", name, dtype, fmt::join(shape, ","), first,
                            data_.size());
    return *this;
  }

  View view_;
  SettingTexts settings_;
  std::string entries_, data_;
  uint32_t draws_ = 0;
};

Example Norm(const char* kind, double mean, double deviation) {
  Example example(ViewNormFault, {{"kind", kind}, {"norm_eps", "1e-5"}});
  example.Draw("x", {6, 12}, mean, deviation).Draw("weight", {12}, 1, 0.4);
  if (kind == std::string("layernorm")) example.Draw("bias", {12}, 0, 0.5);
  return example.Draw("y", {6, 12}, 0, 1);
}

// Far from 0, with variances as float32 has them from sums of squares.
Example CancellingNorm() {
  constexpr int64_t kRows = 6, kC = 12;
  Numbers x, y;
  for (int64_t r = 0; r < kRows; ++r) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < kC; ++c) {
      x.push_back(static_cast<float>(2000 + RandomNormal({17, 6, 0}, r * kC + c)));
      const auto value = static_cast<float>(x.back());
      sum += value;
      squares += value * value;
    }
    const float mean = sum / kC, variance = squares / kC - mean * mean;
    for (int64_t c = 0; c < kC; ++c) {
      y.push_back((x[r * kC + c] - mean) / std::sqrt(std::max(variance, 0.0F) + 1e-5));
    }
  }
  Example example(ViewNormFault, {{"kind", "layernorm"}, {"norm_eps", "1e-5"}});
  return example.Add("x", {kRows, kC}, x)
      .Add("weight", {kC}, Numbers(kC, 1))
      .Add("y", {kRows, kC}, y);
}

Example Sampler(SettingTexts settings) {
  Example example(ViewSamplerFault, std::move(settings));
  return example.Draw("logits", {6, 12}, 0, 1.5)
      .Draw("probabilities", {6, 12}, 0.5, 0.1)
      .AddIds("previous", {6, 3}, {0, 1, 2, 3, 4, 4, 5, 6, 7, 0, 0, 3, 1, 5, 9, 2, 2, 11});
}

// With micro-batches, gradients have one axis more.
Example Optimizer(int step, SettingTexts settings, int64_t micro_batches = 1) {
  settings.insert({{"learning_rate", "1e-2"},
                   {"beta1", "0.9"},
                   {"beta2", "0.95"},
                   {"weight_decay", "0.1"},
                   {"step", std::to_string(step)}});
  Example example(ViewOptimizerFault, std::move(settings));
  const std::pair<const char*, std::vector<int64_t>> parameters[] = {{"wte.weight", {6, 8}},
                                                                     {"ln_f.weight", {8}}};
  for (const auto& [name, shape] : parameters) {
    const std::string word = name;
    const bool gain = shape.size() == 1;
    std::vector<int64_t> gradient = shape;
    if (micro_batches > 1) gradient.insert(gradient.begin(), micro_batches);
    example.Draw(word, shape, gain ? 1 : 0, 0.3).Draw("grad." + word, gradient, 0, 0.4);
    example.Draw("after." + word, shape, 0, 0.3);
    if (step == 1) continue;
    example.Draw("m." + word, shape, 0, 0.1).Draw("v." + word, shape, 0.3, 0.05);
  }
  return example;
}

std::vector<Example> Examples() {
  std::vector<Example> all = {Norm("layernorm", 0.5, 1), Norm("layernorm", 0.5, 0.01),
                              CancellingNorm(), Norm("rmsnorm", 0.5, 1)};
  for (const bool gated : {false, true}) {
    Example mlp(ViewMlpFault, {{"kind", "mlp"}});
    mlp.Draw("x", {6, 8}, 0, 1.5);
    if (gated) {
      mlp.Draw("gate_proj.weight", {10, 8}, 0, 0.5).Draw("up_proj.weight", {10, 8}, 0, 0.5);
      mlp.Draw("down_proj.weight", {8, 10}, 0, 0.5);
    } else {
      mlp.Draw("c_fc.weight", {8, 10}, 0, 0.5).Draw("c_fc.bias", {10}, 0, 0.5);
      mlp.Draw("c_proj.weight", {10, 8}, 0, 0.5).Draw("c_proj.bias", {8}, 0, 0.5);
    }
    all.push_back(mlp.Draw("y", {6, 8}, 0, 1));
  }
  Example loss(ViewLossFault, {{"kind", "loss"}});
  all.push_back(loss.Draw("logits", {2, 4, 9}, 0, 1)
                    .AddIds("targets", {2, 4}, {3, 7, 1, 5, 2, 8, -1, -1})
                    .Add("loss", {1}, {2}));
  Example perplexity(ViewLossFault, {{"kind", "loss"}});
  all.push_back(perplexity.Draw("logits", {4, 2, 9}, 0, 1)
                    .AddIds("targets", {4, 2}, {3, 7, 1, -1, 2, 8, 4, 6})
                    .Add("perplexity", {1}, {9}));
  all.push_back(Sampler({{"temperature", "0.7"}}));
  all.push_back(Sampler({{"temperature", "0"}}));
  all.push_back(Sampler({{"top_k", "4"}}));
  all.push_back(Sampler({{"top_p", "0.7"}}));
  all.push_back(Sampler({{"temperature", "0.7"}, {"top_p", "0.7"}}));
  all.push_back(Sampler({{"top_p", "1"}, {"top_k", "0"}}));
  all.push_back(Sampler({{"repetition_penalty", "1.8"}}));
  all.push_back(Optimizer(4, {}));
  all.push_back(Optimizer(1, {}));
  all.push_back(Optimizer(4, {{"grad_clip", "0.5"}}));
  all.push_back(Optimizer(4, {{"eps", "0.01"}}));
  all.push_back(Optimizer(4, {}, 3));
  all.push_back(
      Optimizer(4, {{"min_lr", "1e-3"}, {"warmup_iters", "4"}, {"lr_decay_iters", "10"}}));
  return all;
}

// ------------------------------------------------------------------ models

std::vector<std::unique_ptr<Gpt>> Models() {
  std::vector<std::unique_ptr<Gpt>> models;
  for (const Position position : {Position::kLearned, Position::kSinusoidal, Position::kRope}) {
    ModelConfig config{.n_layer = 2,
                       .n_head = 4,
                       .n_kv_head = 2,
                       .n_embd = 32,
                       .block_size = 16,
                       .vocab_size = 12};
    config.position = position;
    config.tied = false;
    auto model = Gpt::Create(config, ReferenceKernels());
    if (!model) continue;
    (*model)->Initialize(5);
    // As large as training makes them.
    for (Parameter& p : (*model)->parameters().all()) {
      for (int64_t i = 0; i < p.elements && p.shape.size() > 1; ++i) p.data[i] *= 8;
    }
    models.push_back(std::move(*model));
  }
  return models;
}

}  // namespace

std::optional<FaultView> ViewFault(const std::string& id) {
  static const std::vector<Example> kExamples = Examples();
  for (const Example& example : kExamples) {
    if (std::optional<FaultView> view = example.ViewOf(id)) return view;
  }
  static const std::vector<std::unique_ptr<Gpt>> kModels = Models();
  for (const std::unique_ptr<Gpt>& model : kModels) {
    const ModelInput input{
        .B = 1, .T = 6, .tokens = {3, 7, 1, 11, 7, 4}, .first = {0}, .count = {6}};
    if (std::optional<FaultView> view = ViewModelFault(model.get(), input, id)) return view;
  }
  return std::nullopt;
}

}  // namespace heed
