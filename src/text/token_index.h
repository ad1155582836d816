// The ids of tokens by their text, in an open hash table: a vocabulary is looked up some hundred
// thousand times before a model's first token.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

template <class Text>  // std::string or a view of it
class TokenIndex {
 public:
  TokenIndex() = default;
  // Of no token yet. `tokens` outlive the index.
  explicit TokenIndex(std::span<const Text> tokens)
      : tokens_(tokens), slots_(std::bit_ceil(2 * tokens.size() + 1)) {}

  // False when the index has a token of this one's text already, which stays.
  bool Add(int32_t id) {
    Slot& slot = slots_[Place(tokens_[id], Hash(tokens_[id]))];
    if (slot.id >= 0) return false;
    slot = {Hash(tokens_[id]), id};
    return true;
  }

  // The token's id, or -1.
  int32_t Find(std::string_view text) const {
    return slots_.empty() ? -1 : slots_[Place(text, Hash(text))].id;
  }

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };

  static uint32_t Hash(std::string_view text) {
    return static_cast<uint32_t>(std::hash<std::string_view>()(text));
  }
  // Where the text is, or where it would go.
  size_t Place(std::string_view text, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].id >= 0 && (slots_[at].hash != hash || tokens_[slots_[at].id] != text)) {
      at = (at + 1) & mask;
    }
    return at;
  }

  std::span<const Text> tokens_;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

}  // namespace heed
