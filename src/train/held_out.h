// The loss on windows that were held out.
#pragma once

#include <cstdint>
#include <functional>

#include "data/batch.h"
#include "model/gpt.h"
#include "text/tokenizer.h"

namespace heed {

struct HeldOutLoss {
  double sum = 0;       // nats
  int64_t targets = 0;  // that count
  int64_t bytes = 0;    // of them
};

// Over min(wanted, ValWindows()) windows, at most B at a time, which is what `activations` has room
// for. ValWindows() is not 0. `watch` is told how many are done.
HeldOutLoss MeasureHeldOut(const Gpt& model, const Tokenizer& tokenizer, const BatchSource& source,
                           int64_t wanted, int64_t B, Activations* activations,
                           const std::function<void(int64_t windows)>& watch = {});

}  // namespace heed
