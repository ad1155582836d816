// What the heads of a model look at on a text: a diagnostic, not an explanation. What a head is
// worth shows only when it is taken away (eval/ablation.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"

namespace heed {

struct AttentionMaps {
  int64_t n_layer = 0, n_head = 0, T = 0;
  std::vector<float> pattern;  // [L, H, T, T]: rows sum to 1, exactly 0 above the diagonal

  std::span<const float> Map(int64_t layer, int64_t head) const {  // [T, T]
    return std::span(pattern).subspan(static_cast<size_t>((layer * n_head + head) * T * T),
                                      static_cast<size_t>(T * T));
  }
};

// On tokens [T], at most block_size of them. Errors (kRequest): no blocks, no tokens or too many,
// not enough memory.
Result<AttentionMaps> ReadAttentionMaps(const Gpt& model, std::span<const int32_t> tokens);

// Means over the queries of one map.
struct HeadHabits {
  double entropy = 0;   // of the weights, in nats; 0 looks at one key, ln T at all alike
  double self = 0;      // weight of the query's own position
  double previous = 0;  // of the position before it (queries from the second on)
  double first = 0;     // of the first position (queries from the second on)
  double distance = 0;  // positions looked back, weighted
};
HeadHabits HabitsOf(const AttentionMaps& maps, int64_t layer, int64_t head);

// `pattern` [L, H, T, T] F32 and `tokens` [T] I32. Errors: as WriteSafetensors.
Status WriteAttentionMaps(const std::string& path, const AttentionMaps& maps,
                          std::span<const int32_t> tokens, bool overwrite);

}  // namespace heed
