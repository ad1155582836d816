// What one causal self-attention needs to know besides its numbers, and how files and options say
// it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/fields.h"
#include "base/status.h"
#include "model/config.h"

namespace heed {

// How the rows of a fused projection (c_attn) lie: all of q, then k, then v; or for each key/value
// head its query heads, its key head and its value head, as Megatron-LM keeps them.
enum class QkvLayout { kBlocks, kPerHead };
std::span<const EnumName<QkvLayout>> EnumNames(QkvLayout);

struct AttentionSettings {
  int64_t n_head = 0;     // 0: from the shapes
  int64_t n_kv_head = 0;  // 0: from the shapes
  int64_t head_dim = 0;   // 0: from the shapes
  // Learned and sinusoidal positions entered x already: nothing is rotated.
  Position position = Position::kNone;
  double rope_theta = 10000;
  RopePairing rope_pairing = RopePairing::kHalf;
  int64_t rope_first_position = 0;
  int64_t rotary_dim = 0;  // 0: head_dim
  int64_t window = 0;      // 0: all
  QkvLayout qkv_layout = QkvLayout::kBlocks;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("n_head", self.n_head, "query heads");
    visit("n_kv_head", self.n_kv_head, "key/value heads, a divisor of n_head");
    visit("head_dim", self.head_dim, "width of a head");
    visit("position", self.position, "rope rotates queries and keys, the others rotate nothing");
    visit("rope_theta", self.rope_theta, "base of the rotary angles");
    visit("rope_pairing", self.rope_pairing, "which channels turn together");
    visit("rope_first_position", self.rope_first_position, "number of the first position");
    visit("rotary_dim", self.rotary_dim, "rotated channels of a head; head_dim when not given");
    visit("window", self.window, "keys each query sees, itself included; all when not given");
    visit("qkv_layout", self.qkv_layout, "order of the rows of a fused c_attn");
  }
};

// Settings by name, as text.
using SettingTexts = std::map<std::string, std::string>;

// Every field of `settings`; the shortest text that reads back as the same number.
SettingTexts TextsOf(const AttentionSettings& settings);

// From the settings that a file states and those that were `given`, which win; other names are not
// for attention and skipped, "null" and "None" state nothing. Sizes that shapes tell stay 0.
// Errors (kRequest) name `where` and the setting: text that is no such value, a size below 1 or
// beyond 2^24, a negative window, one of 0 that was given, rope_theta not above 0, an odd
// rotary_dim, a setting of rope without a position.
Result<AttentionSettings> ParseAttentionSettings(const SettingTexts& stated,
                                                 const SettingTexts& given,
                                                 const std::string& where);

}  // namespace heed
