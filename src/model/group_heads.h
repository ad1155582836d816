// Fewer key/value heads for a trained model (Ainslie et al. 2023): each new head stands for a group
// of old ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/fields.h"
#include "base/status.h"
#include "model/gpt.h"

namespace heed {

enum class HeadPooling {
  kMean,    // of the group's heads, number by number: what the paper found best
  kFirst,   // the group's first head
  kRandom,  // a fresh head, as initialised
};

std::span<const EnumName<HeadPooling>> EnumNames(HeadPooling);

// The model with n_kv_head key/value heads in place of its own, all else the same. Heads that are
// equal inside each group make the same function. Errors: n_kv_head that does not divide the
// model's, not enough memory.
Result<std::unique_ptr<Gpt>> GroupHeads(const Gpt& model, int64_t n_kv_head, HeadPooling pooling,
                                        uint64_t seed);

}  // namespace heed
