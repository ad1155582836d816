#include "verify/probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"

namespace heed {

double Worse(double a, double b) { return std::isnan(b) ? HUGE_VAL : std::max(a, b); }

double RelativeError(std::span<const float> got, std::span<const float> want) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = Worse(worst, std::abs(double(got[i]) - double(want[i])));
    largest = std::max(largest, std::abs(double(want[i])));
  }
  return largest == 0 ? worst : worst / largest;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

Result<Taps> Taps::Run(const Gpt& model, const Pass& pass, std::span<const int32_t> tokens,
                       std::span<const KeyValueCache> caches) {
  Taps taps;
  HEED_ASSIGN(taps.activations_, Activations::Create(model, pass.B, pass.T, /*training=*/true));
  const float* x = model.Forward(pass, tokens.data(), taps.activations_.get(), caches);
  // The head's part is computed for its tensors; the logits themselves are not needed.
  std::vector<float> logits(pass.rows() * model.config().vocab_size);
  model.Logits(pass, x, pass.rows(), taps.activations_.get(), logits.data());
  return taps;
}

std::vector<Taps::Tensor> Taps::Saved() const {
  std::vector<Tensor> saved;
  for (size_t i = 0; i < plan().tensors().size(); ++i) {
    const PlannedTensor& t = plan().tensors()[i];
    if (t.lifetime == Lifetime::kScratch || !t.axes.starts_with("B T")) continue;
    saved.push_back({t.name, t.shape, {plan().data(i), static_cast<size_t>(t.elements())}});
  }
  return saved;
}

std::span<const float> Taps::Find(std::string_view name) const {
  for (const Tensor& tensor : Saved()) {
    if (tensor.name == name) return tensor.values;
  }
  return {};
}

std::vector<int32_t> Probe::Tokens(int64_t n, uint32_t stream) const {
  std::vector<int32_t> drawn(n);
  const auto V = static_cast<uint64_t>(config().vocab_size);
  for (int64_t i = 0; i < n; ++i) {
    drawn[i] = static_cast<int32_t>(RandomBelow({seed, stream, kTextStream}, i, V));
  }
  return drawn;
}

Result<std::vector<float>> Probe::Logits(const Pass& pass,
                                         std::span<const int32_t> pass_tokens) const {
  HEED_ASSIGN(const auto activations,
              Activations::Create(model, pass.B, pass.T, /*training=*/pass.training));
  const float* x = model.Forward(pass, pass_tokens.data(), activations.get());
  std::vector<float> logits(pass.rows() * config().vocab_size);
  model.Logits(pass, x, pass.rows(), activations.get(), logits.data());
  return logits;
}

Result<std::vector<float>> Probe::Logits() const { return Logits(tokens, B); }

Result<std::vector<float>> Probe::Logits(std::span<const int32_t> batch_tokens,
                                         int64_t batch) const {
  return Logits(model.NewPass(batch, static_cast<int64_t>(batch_tokens.size()) / batch),
                batch_tokens);
}

Result<std::vector<float>> Probe::CachedLogits(std::span<const int64_t> pieces) const {
  const int64_t V = config().vocab_size;
  // Rows before and after, and room behind: the views of a cache are never the whole of it.
  HEED_ASSIGN(const auto cache, KvCache::Create(config(), B + 2, T + 3));
  HEED_ASSIGN(const auto activations, Activations::Create(model, B, T, /*training=*/false));
  std::vector<float> all(B * T * V);
  int64_t at = 0;
  for (const int64_t n : pieces) {
    std::vector<int32_t> piece;
    for (int64_t b = 0; b < B; ++b) {
      const auto first = tokens.begin() + b * T + at;
      piece.insert(piece.end(), first, first + n);
    }
    Pass pass = model.NewPass(B, n);
    const std::vector<KeyValueCache> layers = cache->Extend(1, B, n, &pass.offsets);
    const float* x = model.Forward(pass, piece.data(), activations.get(), layers);
    std::vector<float> logits(B * n * V);
    model.Logits(pass, x, B * n, activations.get(), logits.data());
    for (int64_t b = 0; b < B; ++b) {
      std::copy_n(logits.begin() + b * n * V, n * V, all.begin() + (b * T + at) * V);
    }
    at += n;
  }
  return all;
}

Result<std::vector<LayerAttention>> Probe::Attentions() const {
  HEED_ASSIGN(const Taps taps, Taps::Run(model, model.NewPass(B, T), tokens));
  std::vector<LayerAttention> layers;
  for (int64_t i = 0; i < config().n_layer; ++i) {
    const std::span<const float> qkv = taps.Find("h." + std::to_string(i) + ".attn.qkv");
    layers.push_back({{qkv.begin(), qkv.end()},
                      std::vector<float>(B * T * config().n_head * config().head_dim)});
  }
  for (LayerAttention& layer : layers) {
    const ModelConfig& c = config();
    AttentionArgs<>& a = layer.args;
    a = {B, T, T, c.n_head, c.n_kv_head, c.head_dim};
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
    a.window = c.sliding_window;
    a.q = layer.qkv.data();
    a.k = layer.k();
    a.v = layer.v();
    a.q_row = a.kv_row = (c.n_head + 2 * c.n_kv_head) * c.head_dim;
    a.q_batch = a.kv_batch = T * a.q_row;
    a.kv_head = c.head_dim;
    a.z = layer.z.data();
  }
  return layers;
}

Result<double> Probe::LossAndBackward(const Kernels& kernels, std::span<const int32_t> batch_tokens,
                                      std::span<const int32_t> targets, int64_t batch,
                                      double dropout) const {
  Pass pass = model.NewPass(batch, static_cast<int64_t>(batch_tokens.size()) / batch);
  pass.kernels = &kernels;
  pass.training = true;
  pass.dropout = dropout;
  HEED_TRY(model.parameters().AllocateGradients());
  HEED_ASSIGN(const auto activations,
              Activations::Create(model, pass.B, pass.T, /*training=*/true));
  const auto rows = static_cast<double>(pass.rows());
  return model.LossAndBackward(pass, batch_tokens.data(), targets.data(),
                               static_cast<float>(1 / rows), activations.get()) /
         rows;
}

Result<double> Probe::Loss(std::span<const int32_t> batch_tokens, std::span<const int32_t> targets,
                           int64_t batch) const {
  const Pass pass = model.NewPass(batch, static_cast<int64_t>(batch_tokens.size()) / batch);
  HEED_ASSIGN(const auto activations,
              Activations::Create(model, pass.B, pass.T, /*training=*/false));
  return model.Loss(pass, batch_tokens.data(), targets.data(), activations.get()) /
         static_cast<double>(pass.rows());
}

}  // namespace heed
