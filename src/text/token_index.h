// The ids of tokens by their text, in an open hash table: a vocabulary is looked up some hundred
// thousand times before a model's first token.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bytes_hash.h"

namespace heed {

template <class Text>  // std::string or a view of it
class TokenIndex {
 public:
  TokenIndex() = default;
  // Of no token yet. `tokens` outlive the index.
  explicit TokenIndex(std::span<const Text> tokens)
      : tokens_(tokens), keys_(tokens.size()), slots_(std::bit_ceil(2 * tokens.size() + 1)) {}

  // False when the index has a token of this one's text already, which stays.
  bool Add(int32_t id) {
    const Probe probe(tokens_[id]);
    Slot& slot = slots_[Place(probe)];
    if (slot.id >= 0) return false;
    slot = {probe.tag(), id};
    keys_[id] = probe.key;
    return true;
  }

  // What is looked for.
  struct Probe {
    Probe() = default;
    explicit Probe(std::string_view of) : text(of), size(of.size()), is_short(size <= kShortBytes) {
      if (is_short) key = ShortKeyOf(text);
      hash = is_short ? HashKey(key, size) : HashBytes(text);
    }
    // A text of which only the key is at hand.
    Probe(const ShortKey& of, size_t n) : key(of), size(n), hash(HashKey(of, n)) {}

    // Bits of the hash, and the length of what is short.
    uint32_t tag() const {
      return static_cast<uint32_t>(hash) << 8 | static_cast<uint32_t>(is_short ? size : 255);
    }
    ShortKey key;
    std::string_view text;
    size_t size = 0;
    bool is_short = true;
    uint64_t hash = 0;
  };

  // The token's id, or -1.
  int32_t Find(const Probe& probe) const { return slots_.empty() ? -1 : slots_[Place(probe)].id; }
  int32_t Find(std::string_view text) const { return Find(Probe(text)); }
  void Prefetch(const Probe& probe) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[First(probe)]);
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };

  size_t First(const Probe& probe) const { return probe.hash >> 32 & (slots_.size() - 1); }
  // Where the text is, or where it would go.
  size_t Place(const Probe& probe) const {
    const size_t mask = slots_.size() - 1;
    size_t at = First(probe);
    while (slots_[at].id >= 0 && !Holds(slots_[at], probe)) at = (at + 1) & mask;
    return at;
  }
  bool Holds(const Slot& slot, const Probe& probe) const {
    if (slot.tag != probe.tag()) return false;
    return probe.is_short ? keys_[slot.id] == probe.key : tokens_[slot.id] == probe.text;
  }

  std::span<const Text> tokens_;
  std::vector<ShortKey> keys_;  // of the short ones
  std::vector<Slot> slots_;     // a power of two, at most half full
};

}  // namespace heed
