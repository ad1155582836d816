#include "train/settings.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace heed {
namespace {

Status CheckRange(const char* name, double value, double low, double high, const char* expected) {
  if (value >= low && value <= high) return {};  // false for NaN
  return BadRequest(name, fmt::format("{}", value), expected);
}

constexpr double kMostIterations = 1e9;
constexpr double kLargest = std::numeric_limits<double>::max();

}  // namespace

std::span<const EnumName<Optimizer>> EnumNames(Optimizer) {
  static constexpr EnumName<Optimizer> kNames[] = {{Optimizer::kAdamw, "adamw"},
                                                   {Optimizer::kMuon, "muon"}};
  return kNames;
}

Status TrainSettings::Resolve() {
  HEED_TRY(CheckRange("val_fraction", val_fraction, 1e-9, 1 - 1e-9, "a number between 0 and 1"));
  HEED_TRY(CheckRange("vocab_size", double(vocab_size), 0, 1 << 20, "0 to 1048576"));
  HEED_TRY(CheckRange("batch_size", double(batch_size), 1, 1 << 20, "1 to 1048576"));
  HEED_TRY(CheckRange("grad_accum", double(grad_accum), 1, 1 << 20, "1 to 1048576"));
  HEED_TRY(CheckRange("max_iters", double(max_iters), 0, kMostIterations, "0 to 1000000000"));
  HEED_TRY(CheckRange("learning_rate", learning_rate, 0, kLargest, "a number from 0"));
  if (std::isnan(min_lr)) min_lr = learning_rate / 10;
  HEED_TRY(CheckRange("min_lr", min_lr, 0, learning_rate, "a number from 0 to learning_rate"));
  HEED_TRY(CheckRange("muon_lr", muon_lr, 0, kLargest, "a number from 0"));
  if (optimizer == Optimizer::kMuon && learning_rate == 0) {
    return BadRequest("learning_rate", "0", "a number above 0", "muon_lr falls with it");
  }
  HEED_TRY(CheckRange("warmup_iters", double(warmup_iters), 0, kMostIterations, "0 or more"));
  HEED_TRY(CheckRange("lr_decay_iters", double(lr_decay_iters), 0, kMostIterations, "0 or more"));
  if (lr_decay_iters == 0) lr_decay_iters = max_iters;
  HEED_TRY(CheckRange("beta1", beta1, 0, std::nextafter(1.0, 0.0), "a number in [0, 1)"));
  HEED_TRY(CheckRange("beta2", beta2, 0, std::nextafter(1.0, 0.0), "a number in [0, 1)"));
  HEED_TRY(CheckRange("weight_decay", weight_decay, 0, 1e3, "a number from 0 to 1000"));
  HEED_TRY(CheckRange("grad_clip", grad_clip, 0, kLargest, "a number from 0"));
  HEED_TRY(CheckRange("eval_interval", double(eval_interval), 1, kMostIterations, "1 or more"));
  HEED_TRY(CheckRange("eval_iters", double(eval_iters), 1, kMostIterations, "1 or more"));
  HEED_TRY(CheckRange("log_interval", double(log_interval), 1, kMostIterations, "1 or more"));
  HEED_TRY(CheckRange("checkpoint_interval", double(checkpoint_interval), 0, kMostIterations,
                      "0 or more"));
  if (checkpoint_interval == 0) checkpoint_interval = eval_interval;
  return {};
}

}  // namespace heed
