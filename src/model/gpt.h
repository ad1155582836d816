// A GPT: token embedding, blocks, head, as its ModelConfig says. The parameters are the model;
// everything that a pass writes lives in an Activations, so one model serves several at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "nn/block.h"
#include "nn/embedding.h"
#include "nn/head.h"
#include "tensor/parameters.h"
#include "tensor/plan.h"

namespace heed {

class Gpt;

// The memory of passes over at most B sequences of T positions, in the arithmetic that the model
// has when it is made.
class Activations {
 public:
  // With `training`, backward is possible; with `recompute` too, it runs every block forward once
  // more and so needs a fraction of the memory. Error: not enough memory.
  static Result<std::unique_ptr<Activations>> Create(const Gpt& model, int64_t B, int64_t T,
                                                     bool training, bool recompute = false);
  // The plan alone, without memory.
  static std::unique_ptr<Activations> Outline(const Gpt& model, int64_t B, int64_t T, bool training,
                                              bool recompute = false);
  const Plan& plan() const { return plan_; }
  // Whether training passes may run in lanes (see NarrowGpt), which need all gradients.
  bool narrow() const { return narrow_ != nullptr; }

 private:
  friend class Gpt;
  Activations(Keep keep, bool rounds) : plan_(keep, rounds) {}

  Plan plan_;
  float* embedded_ = nullptr;  // [B, T, C]
  float* dx_ = nullptr;        // [B, T, C]; training
  std::vector<Block::State> blocks_;
  Block::Scratch scratch_;
  Head::State head_;
  float* narrow_ = nullptr;  // the workspace of Kernels::narrow, where the model and T allow it
};

class Gpt {
 public:
  // `config` is resolved here (see ModelConfig::Resolve). Parameters are zero until Initialize or
  // a loader fills them.
  static Result<std::unique_ptr<Gpt>> Create(ModelConfig config, const Kernels& kernels);
  // The same without memory for parameters: for a loader that gives each its own.
  static Result<std::unique_ptr<Gpt>> CreateWithoutNumbers(ModelConfig config,
                                                           const Kernels& kernels);
  // The layers and the shapes of their parameters, without memory: to plan with, not to run.
  static Result<std::unique_ptr<Gpt>> Outline(ModelConfig config, const Kernels& kernels);
  Gpt(const Gpt&) = delete;
  Gpt& operator=(const Gpt&) = delete;

  const ModelConfig& config() const { return config_; }
  const Kernels& kernels() const { return *kernels_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }

  // The arithmetic of the passes that NewPass begins; kF32 until set.
  void set_arithmetic(Arithmetic arithmetic) { arithmetic_ = arithmetic; }
  Arithmetic arithmetic() const { return arithmetic_; }
  // For inference alone, for parameters may no longer change: packs the weights of products in few
  // bits, where a type can, and sets its arithmetic: kBf16, or kInt8. Error: not enough memory.
  Status PackWeights(BlockType type);

  // GPT-2's initialisation: normal 0.02, projections into the residual stream scaled by
  // 1 / sqrt(2 · n_layer), gains 1, biases 0.
  void Initialize(uint64_t seed);

  // A pass without dropout over B sequences of T positions at position 0, to be adjusted.
  Pass NewPass(int64_t B, int64_t T) const;

  // Runs the blocks on tokens [B, T], each in [0, vocab_size); with caches (one for each layer),
  // behind the positions that they hold. Returns the residual stream [B, T, C] before the head,
  // from pass.first_output on.
  const float* Forward(const Pass& pass, const int32_t* tokens, Activations* activations,
                       std::span<const KeyValueCache> caches = {}) const;
  // logits [rows, V] of the given rows [rows, C] of the residual stream.
  void Logits(const Pass& pass, const float* x, int64_t rows, Activations* activations,
              float* logits) const;
  // The sum over targets [B, T] that are not -1 of -log p(target), in nats.
  double Loss(const Pass& pass, const int32_t* tokens, const int32_t* targets,
              Activations* activations) const;
  // The same, and the gradients of `scale` times it in every Parameter::grad (added to those there
  // when pass.accumulate). Needs AllocateGradients and training activations. With pass.update
  // weights that share a gradient take their steps, unless the sum is not finite.
  double LossAndBackward(const Pass& pass, const int32_t* tokens, const int32_t* targets,
                         float scale, Activations* activations);

  const std::vector<Block>& blocks() const { return blocks_; }
  const Head& head() const { return head_; }

 private:
  friend class Activations;
  Gpt(ModelConfig config, const Kernels& kernels) : config_(config), kernels_(&kernels) {}
  void AddGpt2Layers();
  void AddLlamaLayers();
  Block NewBlock(int64_t layer) const;
  bool RunsNarrow(const Pass& pass, const Activations& activations) const;
  double RunNarrow(const Pass& pass, const int32_t* tokens, const int32_t* targets, float scale,
                   float* gradients, const Activations& activations) const;

  ModelConfig config_;
  const Kernels* kernels_;
  ParameterSet parameters_;
  Arithmetic arithmetic_ = Arithmetic::kF32;
  RopeTable rope_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::shared_ptr<const NarrowGpt> narrow_;  // or null: see DescribeNarrow
};

// A copy of the model with another context length or dropout. Learned positions that the model does
// not have are drawn as Initialize(seed) draws them. Errors: as Gpt::Create.
Result<std::unique_ptr<Gpt>> WithContext(const Gpt& model, int64_t block_size, double dropout,
                                         uint64_t seed);

}  // namespace heed
