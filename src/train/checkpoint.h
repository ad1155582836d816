// All of a run's state in one file, written by renaming: weights, moments and counters of one and
// the same moment, so that no kill can mix two.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"
#include "model/gpt.h"
#include "optim/adamw.h"

namespace heed {

struct TrainState {
  int64_t iteration = 0;  // updates made so far
  uint64_t seed = 0;
  uint64_t data_fingerprint = 0;  // of the tokens that the run was started on
  double elapsed_s = 0;
  double best_val_loss = std::numeric_limits<double>::infinity();
};

// `folder` is the run's; the file is checkpoint/state.safetensors in it.
Status SaveCheckpoint(const std::string& folder, const Gpt& model, Adamw* adamw,
                      const TrainState& state);
// Fills model and moments. Errors: no checkpoint; a damaged one; one of another model.
Result<TrainState> LoadCheckpoint(const std::string& folder, Gpt* model, Adamw* adamw);

}  // namespace heed
