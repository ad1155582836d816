// The settings of a training run; their names are nanoGPT's where it has one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/status.h"
#include "kernels/args.h"
#include "optim/adamw.h"

namespace heed {

enum class Optimizer {
  kAdamw,
  kMuon,  // for the matrices of linear layers; AdamW for the rest
};
std::span<const EnumName<Optimizer>> EnumNames(Optimizer);

struct TrainSettings {
  std::vector<std::string> data;  // files, folders, or one builtin:NAME
  std::string tokenizer = "char";
  int64_t vocab_size = 0;  // of bpe; 0: 4096
  double val_fraction = 0.1;
  int64_t batch_size = 12;
  int64_t grad_accum = 1;
  int64_t max_iters = 2000;
  double learning_rate = 1e-3;
  double min_lr = std::numeric_limits<double>::quiet_NaN();  // NaN: a tenth of learning_rate
  Optimizer optimizer = Optimizer::kAdamw;
  double muon_lr = 0.024;
  int64_t warmup_iters = 100;
  int64_t lr_decay_iters = 0;  // 0: max_iters
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double grad_clip = 1.0;
  int64_t eval_interval = 250;
  int64_t eval_iters = 20;
  int64_t log_interval = 10;
  int64_t checkpoint_interval = 0;  // 0: eval_interval
  std::string sample_prompt;
  Arithmetic dtype = Arithmetic::kF32;
  bool recompute = false;
  bool overfit_batch = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("tokenizer", self.tokenizer,
          "char, byte, bpe, or the path of a vocabulary (GPT-2's, tokenizer.json, *.model, *.bin)");
    visit("vocab_size", self.vocab_size, "tokens that bpe learns from the text; 4096 if 0");
    visit("val_fraction", self.val_fraction, "share of the text's tail that is held out");
    visit("batch_size", self.batch_size, "sequences in a batch");
    visit("grad_accum", self.grad_accum, "batches whose gradients make one update");
    visit("max_iters", self.max_iters, "updates");
    visit("learning_rate", self.learning_rate, "largest learning rate");
    visit("min_lr", self.min_lr, "learning rate at the end; a tenth of learning_rate if not given");
    visit("optimizer", self.optimizer, "muon takes the matrices of linear layers, AdamW the rest");
    visit("muon_lr", self.muon_lr, "Muon's largest learning rate; falls as learning_rate does");
    visit("warmup_iters", self.warmup_iters, "updates over which the learning rate rises");
    visit("lr_decay_iters", self.lr_decay_iters,
          "update at which min_lr is reached; max_iters if 0");
    visit("beta1", self.beta1, "AdamW's decay of the first moment");
    visit("beta2", self.beta2, "AdamW's decay of the second moment");
    visit("weight_decay", self.weight_decay, "on tensors of two and more dimensions");
    visit("grad_clip", self.grad_clip,
          "largest gradient norm; 0 for none, which takes less memory");
    visit("eval_interval", self.eval_interval,
          "updates between evaluations; short runs: max_iters / 4");
    visit("eval_iters", self.eval_iters, "batches of an evaluation; eval reads all held-out text");
    visit("log_interval", self.log_interval, "updates between lines of metrics.jsonl");
    visit("checkpoint_interval", self.checkpoint_interval,
          "updates between checkpoints; eval_interval if 0");
    visit("sample_prompt", self.sample_prompt, "text to continue at each evaluation");
    visit("dtype", self.dtype, "arithmetic of products; sums and weights stay f32");
    visit("recompute", self.recompute,
          "compute activations again in the backward pass: less memory, a third more time");
    visit("overfit_batch", self.overfit_batch, "train on the first batch alone");
  }

  // Fills in the defaults above that depend on others and checks every range.
  Status Resolve();
  AdamwSettings adamw() const {
    const double muon = optimizer == Optimizer::kMuon ? muon_lr / learning_rate : 0;
    return {beta1, beta2, 1e-8, weight_decay, grad_clip, muon};
  }
  Schedule schedule() const { return {learning_rate, min_lr, warmup_iters, lr_decay_iters}; }
};

}  // namespace heed
