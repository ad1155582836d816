// A model with tokens to run it on, and what checks ask of it again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "infer/cache.h"
#include "model/gpt.h"

namespace heed {

// What a check found; `skipped` says why it does not apply.
struct Finding {
  double value = 0, bound = 0;
  std::string note;
  std::string skipped;
};

inline Finding NotApplicable(std::string why) { return {0, 0, "", std::move(why)}; }

// The larger, where a NaN is larger than any number.
double Worse(double a, double b);
// The largest |got - want| as a share of the largest |want|; infinite when a NaN is in it.
double RelativeError(std::span<const float> got, std::span<const float> want);
bool SameBits(std::span<const float> a, std::span<const float> b);

// One pass without dropout in activations of training, where every saved tensor can be read.
class Taps {
 public:
  static Result<Taps> Run(const Gpt& model, const Pass& pass, std::span<const int32_t> tokens,
                          std::span<const KeyValueCache> caches = {});

  // Tensors [B, T, ...] that the pass wrote, in the order of the computation.
  struct Tensor {
    std::string_view name;
    std::span<const int64_t> shape;
    std::span<const float> values;
  };
  std::vector<Tensor> Saved() const;
  // Empty when there is none of that name.
  std::span<const float> Find(std::string_view name) const;
  const Plan& plan() const { return activations_->plan(); }

 private:
  std::unique_ptr<Activations> activations_;
};

// One layer's attention on the numbers that the model gives it: rotated q and k, and v.
struct LayerAttention {
  std::vector<float> qkv;  // [B, T, (H + 2 Hkv) D]
  std::vector<float> z;    // [B, T, H, D]
  AttentionArgs<> args;    // of those two

  float* k() { return qkv.data() + args.H * args.D; }
  float* v() { return k() + args.Hkv * args.D; }
  // v[b, s, h, d] = value(s, h, d)
  template <class F>
  void SetValues(const F& value) {
    for (int64_t row = 0; row < args.B * args.S; ++row) {
      for (int64_t h = 0; h < args.Hkv; ++h) {
        for (int64_t d = 0; d < args.D; ++d) {
          v()[row * args.kv_row + h * args.D + d] = static_cast<float>(value(row % args.S, h, d));
        }
      }
    }
  }
};

struct Probe {
  Gpt& model;
  uint64_t seed;
  bool fresh;
  bool large;  // what takes many passes is done with fewer
  int64_t B, T;
  std::vector<int32_t> tokens;  // [B, T]

  const ModelConfig& config() const { return model.config(); }
  // n tokens, others for another `stream`.
  std::vector<int32_t> Tokens(int64_t n, uint32_t stream) const;

  Result<std::vector<float>> Logits(const Pass& pass, std::span<const int32_t> tokens) const;
  // [B, T, V] of this probe's tokens, or of others [B, T'], in eval.
  Result<std::vector<float>> Logits() const;
  Result<std::vector<float>> Logits(std::span<const int32_t> tokens, int64_t batch) const;
  // This probe's tokens, read through a cache in pieces of the given sizes.
  Result<std::vector<float>> CachedLogits(std::span<const int64_t> pieces) const;

  Result<std::vector<LayerAttention>> Attentions() const;

  // Mean loss on tokens [B, T] whose targets are given, with gradients; dropout as given.
  Result<double> LossAndBackward(const Kernels& kernels, std::span<const int32_t> batch_tokens,
                                 std::span<const int32_t> targets, int64_t batch,
                                 double dropout) const;
  Result<double> Loss(std::span<const int32_t> batch_tokens, std::span<const int32_t> targets,
                      int64_t batch) const;
};

}  // namespace heed
