// What each attention head is worth: the loss without it (Michel, Levy, Neubig 2019).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"

namespace heed {

struct HeadAblation {
  double loss = 0;             // nats per token, of the whole model
  int64_t tokens = 0;          // predicted
  std::vector<double> change;  // [n_layer, n_head]: what the loss gains when the head gives 0
};

// On a text of at least 2 tokens, in windows of block_size that see nothing of one another. One
// head at a time; the model is as it was afterwards. on_head is called before each. Errors
// (kRequest): too few tokens, no blocks, not enough memory.
Result<HeadAblation> AblateHeads(Gpt* model, std::span<const int32_t> tokens,
                                 const std::function<void(int64_t head)>& on_head = {});

}  // namespace heed
