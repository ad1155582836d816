// The training loop: batches, accumulation, clipping, AdamW, evaluation, metrics, checkpoints. It
// is silent; what happens is told through TrainEvents. Row i of metrics.jsonl speaks of the model
// after i updates: the loss of batch i, and the held-out loss when it is due.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/batch.h"
#include "io/metrics.h"
#include "model/gpt.h"
#include "optim/adamw.h"
#include "text/tokenizer.h"
#include "train/checkpoint.h"
#include "train/settings.h"

namespace heed {

struct TrainEvents {
  // After the loss of each iteration is known, logged or not.
  std::function<void(const MetricsRow&)> on_iteration;
  // After each evaluation; `row` has the held-out loss when there is a held-out split.
  std::function<Status(const MetricsRow& row)> on_evaluation;
  // After the run's folder holds a checkpoint of so many updates.
  std::function<void(int64_t iteration)> on_checkpoint;
  // Asked once an iteration; true saves a checkpoint and ends the run.
  std::function<bool()> should_stop;
};

struct TrainOutcome {
  MetricsRow last;
  double best_val_loss = 0;
  bool stopped = false;  // by should_stop
};

class Trainer {
 public:
  // All referenced objects must outlive the trainer. `settings` are resolved. `tokenizer` is
  // written into the run's folder. Error: not enough memory.
  static Result<std::unique_ptr<Trainer>> Create(Gpt* model, const Tokenizer& tokenizer,
                                                 const BatchSource& source,
                                                 const TrainSettings& settings, uint64_t seed,
                                                 const std::string& folder);

  // Goes on from the run's checkpoint. Errors: none there, damaged, or the data has changed.
  Status Resume();

  // Runs until max_iters. Errors: files that cannot be written; a loss or gradient that is not
  // finite (kNumeric), which leaves nonfinite/ in the folder: the model and batch of that step.
  Result<TrainOutcome> Run(const TrainEvents& events);

  int64_t iteration() const { return state_.iteration; }
  // What the held-out loss cannot fall below, where the text's own entropy is known.
  const std::optional<LossFloor>& floor() const { return floor_; }
  // Bytes of activations, gradients, moments and parameters.
  size_t planned_bytes() const;

 private:
  Trainer(Gpt* model, const Tokenizer& tokenizer, const BatchSource& source,
          const TrainSettings& settings, uint64_t seed, const std::string& folder);

  // The iteration's batches.
  void DrawBatches();
  Pass TrainingPass(int64_t a) const;  // over batches_[a]
  // Their mean loss.
  double TrainingLoss();
  // The same, and gradients; sets gradient_norm_. Takes the steps of weights if updates_in_pass_.
  double ComputeGradients(double learning_rate);
  // Fills in the held-out loss over eval_iters batches, in nats per token and bits per byte.
  void Evaluate(MetricsRow* row);
  Status RecordEvaluation(MetricsRow* row, const TrainEvents& events);
  Status CheckFinite(double loss);
  std::string DescribeNonFinite(double loss);
  Status Save();
  double Elapsed() const;

  Gpt* model_;
  const Tokenizer& tokenizer_;
  const BatchSource& source_;
  const TrainSettings settings_;
  const std::string folder_;
  TrainState state_;
  std::unique_ptr<Adamw> adamw_;
  std::unique_ptr<Activations> activations_;
  bool updates_in_pass_ = false;  // see UpdateInPass
  std::vector<Batch> batches_;    // [grad_accum]
  int64_t targets_ = 0;           // in them
  double gradient_norm_ = 0;
  std::optional<LossFloor> floor_;
  std::chrono::steady_clock::time_point start_;
  double elapsed_before_ = 0;  // seconds of the runs that this one resumes
};

// A fingerprint of what a source gives: its sizes and some of its windows.
uint64_t DataFingerprint(const BatchSource& source);

}  // namespace heed
