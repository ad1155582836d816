// Trains an n-gram model on the text that a GPT would be trained on, with the same curves.
#pragma once

#include <functional>

#include "base/status.h"
#include "baseline/ngram.h"
#include "data/batch.h"
#include "io/metrics.h"

namespace heed {

// The sizes by which a GPT's run would step through the text and be evaluated.
struct CountingSettings {
  int64_t batch_size = 12;
  int64_t eval_iters = 20;  // batches of an evaluation
  uint64_t seed = 0;        // of the training windows that train_loss is measured on
};

// Counts the training text once and calls on_row as it goes: when nothing has been counted, then
// whenever the text so far has doubled, up to the whole. In a row, iter is the number of batches
// that the counted tokens would fill, train_loss the loss on windows of the whole training text,
// counted or not, and val_loss that on the held-out windows of a GPT's evaluations.
Result<Ngram> CountText(const TextBatches& text, const NgramSettings& settings,
                        const CountingSettings& counting,
                        const std::function<Status(const MetricsRow&)>& on_row);

}  // namespace heed
