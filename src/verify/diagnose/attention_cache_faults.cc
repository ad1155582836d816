#include <fmt/format.h>

#include <algorithm>

#include "verify/diagnose/attention_fault_lists.h"

namespace heed::attention_faults {
namespace {

Variants AlignTopLeft(const AttentionFacts& f) {
  if (f.P == 0) return {};
  return {One([](Recipe* r) { r->mask.shape = MaskShape::kTopLeft; })};
}

Variants Positions(const AttentionFacts& f, PositionChoice choice) {
  if (f.P == 0) return {};
  return Turned(f, [choice](Recipe* r) { r->rotate.position = choice; });
}

Variants PositionRestart(const AttentionFacts& f) { return Positions(f, PositionChoice::kRestart); }

Variants RopeChunkConstant(const AttentionFacts& f) {
  return Positions(f, PositionChoice::kChunkConstant);
}

Variants PositionUpper(const AttentionFacts& f) { return Positions(f, PositionChoice::kOneTooFar); }

Variants KeptRows(const AttentionFacts& f) {
  return f.first == 0 ? Variants() : Positions(f, PositionChoice::kKeptRows);
}

// Behind a cache, the chunk is a piece of its own; else the keys came in pieces of one length, or
// in two.
Variants FragmentsJoined(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const auto pieces = [](int64_t rows) {
    return One([rows](Recipe* r) { r->rotate.key_piece = rows; },
               fmt::format("pieces of {} keys", rows));
  };
  if (f.P > 0) return {pieces(f.T)};
  constexpr int64_t kLongest = 32;
  Variants variants;
  for (int64_t rows = 2; rows < std::min(f.T, kLongest); ++rows) {
    variants.push_back(pieces(rows));
    if (2 * rows >= f.T) continue;
    variants.push_back(One([rows](Recipe* r) { r->rotate.first_piece = rows; },
                           fmt::format("a piece of {} keys and the others", rows)));
  }
  return variants;
}

Variants RopeTwice(const AttentionFacts& f) {
  if (f.P == 0) return Turned(f, [](Recipe* r) { r->rotate.q_sense = r->rotate.k_sense = 2; });
  return Turned(f, [](Recipe* r) { r->cache.cache = CacheChoice::kTurnedAgain; });
}

Variants Cached(const AttentionFacts& f, std::vector<std::pair<CacheChoice, const char*>> choices) {
  if (f.P == 0) return {};
  Variants variants;
  for (const auto& [choice, detail] : choices) {
    variants.push_back(One([choice = choice](Recipe* r) { r->cache.cache = choice; }, detail));
  }
  return variants;
}

Variants CacheHole(const AttentionFacts& f) {
  Variants variants = Cached(
      f, {{CacheChoice::kHole, "a row of zeros is read"},
          {CacheChoice::kHoleLastLost, "a row of zeros is read in place of the last new one"}});
  if (f.rotary == 0) return variants;
  const size_t count = variants.size();
  for (size_t i = 0; i < count; ++i) {
    variants.push_back(One(
        [change = variants[i].change](Recipe* r) {
          change(r);
          r->rotate.position = PositionChoice::kOneTooFar;
        },
        variants[i].detail));
  }
  return variants;
}

// A ring as long as the window, or as the cache.
Variants RingOverwritten(const AttentionFacts& f) {
  const int64_t capacity = f.window > 0 && f.window <= f.P ? f.window : f.P;
  if (f.T >= capacity) return {};
  std::vector<std::pair<CacheChoice, const char*>> choices = {
      {CacheChoice::kRingClamped, "the chunk is written over the newest rows"}};
  // A single token in place of the oldest leaves all that its query may see.
  if (f.T > 1) {
    choices.emplace_back(CacheChoice::kRingBySlot, "keys are taken in the order of their slots");
    choices.emplace_back(CacheChoice::kRingEarly,
                         "the chunk's last tokens are written over keys of its first queries");
  }
  return Cached(f, std::move(choices));
}

Variants PrefixMisaligned(const AttentionFacts& f) {
  Variants variants;
  constexpr int64_t kMost = 8;
  for (int64_t count = 1; count < std::min(f.P, kMost); ++count) {
    variants.push_back(One(
        [count](Recipe* r) {
          r->cache.cache = CacheChoice::kEndSkipped;
          r->cache.skipped = count;
        },
        fmt::format("the last {} of {} cached rows are never seen", count, f.P)));
  }
  return variants;
}

Variants CacheNotRead(const AttentionFacts& f) { return Cached(f, {{CacheChoice::kNotRead, ""}}); }

Variants CacheStride(const AttentionFacts& f) {
  return f.Hkv == 1 ? Variants() : Cached(f, {{CacheChoice::kJoinedFlat, ""}});
}

Variants BeamCache(const AttentionFacts& f) {
  if (f.B == 1) return {};
  return Cached(f, {{CacheChoice::kBatchReversed, "in reversed order"},
                    {CacheChoice::kBatchRolled, "of the row before"},
                    {CacheChoice::kBatchRolledBack, "of the row behind"}});
}

Variants CacheReinterpreted(const AttentionFacts& f) {
  return Cached(f, {{CacheChoice::kBf16ReadAsF16, "bfloat16 read as float16"},
                    {CacheChoice::kF16ReadAsBf16, "float16 read as bfloat16"}});
}

const AttentionFault kFaults[] = {
    {{"position_restart", "behind a cache, new tokens are numbered from 0 again",
      "number new tokens from the count of cached ones",
      "pos = torch.arange(past_len, past_len + T)", "const int64_t position = past + t;",
      "the first decode step turns q and k as position 0; without a cache all is equal"},
     PositionRestart},
    {{"causal_align_top_left",
      "with more keys than queries, query i sees keys 0..i in place of 0..i+S-T",
      "align the triangle at the last key", "mask = torch.ones(T, S).tril(diagonal=S - T).bool()",
      "visible = j <= past + i;", "a one-token step answers v_0; equal when T = S"},
     AlignTopLeft},
    {{"cache_not_read", "decoding attends to the new tokens alone",
      "join cached and new keys and values before the products",
      "k = torch.cat([past_k, k], dim=2); v = torch.cat([past_v, v], dim=2)",
      "for (int64_t j = 0; j < past + T; ++j) score(q, keys[j]);",
      "a one-token step answers its own v; other cached numbers change nothing"},
     CacheNotRead},
    {{"cache_hole", "the write index is one too far: an empty slot is read",
      "write at the count of cached rows, then raise the count",
      "cache[:, :, past_len:past_len + T] = k", "copy(k, cache + past * D); past += T;",
      "fill spare slots with 1e9: the output explodes"},
     CacheHole},
    {{"rope_window_constant", "all tokens of a chunk turn by the position of its first",
      "give every token of the chunk its own position",
      "pos = torch.arange(past_len, past_len + T)", "angle = (past + t) * frequency[i];",
      "row 0 of the chunk is equal, later rows differ; one-token steps are right"},
     RopeChunkConstant},
    {{"position_upper_layers", "new tokens are numbered one too far",
      "advance the length once for each step, behind the last layer",
      "pos = torch.arange(past_len, past_len + T)", "if (layer + 1 == n_layer) length += T;",
      "layer 0 is equal; in layers above, new keys are turned one step further"},
     PositionUpper},
    {{"evicted_length_as_position", "the count of kept rows is taken for the position",
      "keep the number of tokens seen apart from the number of rows kept",
      "pos = torch.arange(seen, seen + T)", "const int64_t position = seen + t;",
      "equal until the first eviction"},
     KeptRows},
    {{"rope_table_cache_key", "tables of angles are kept by length alone, without the offset",
      "key the tables by offset and length", "cos = self.cos[past_len:past_len + T]",
      "table = angles(past, T);",
      "a second chunk of the first one's length is turned as the first; of another, rightly"}},
    {{"rope_twice", "what was rotated is rotated again",
      "store rotated keys and turn only new ones",
      "k_cache = torch.cat([k_cache, rope(k_new, pos)], dim=2)",
      "rotate(k_new, past); append(cache, k_new);",
      "the oldest keys are worst, the newest equal; without a cache all angles are doubled"},
     RopeTwice},
    {{"cache_head_stride", "cached and new rows are joined across the borders of heads",
      "step from head to head by the cache's own length",
      "k = torch.cat([past_k, k], dim=2)  # along time", "row = cache + (h * capacity + t) * D;",
      "give every head a constant: one head's rows are found in another"},
     CacheStride},
    {{"ring_cache_overwrite", "writing into a full ring loses keys or their order",
      "attend before a key is overwritten, and mask by position, not by slot",
      "slots = (past_len + torch.arange(T)) % window; visible = key_pos[None] <= pos[:, None]",
      "slot = position % window; visible = key_position[slot] <= position;",
      "equal until the ring is full; the same suffix from another slot must answer the same"},
     RingOverwritten},
    {{"rope_fragments_joined", "pieces of keys are joined that were turned from position 0 each",
      "turn every piece to its place in the whole",
      "k = torch.cat([rope(piece, start + torch.arange(n)) for start, n, piece in pieces], dim=2)",
      "rotate(piece, start + t);", "keys of the first piece are equal, those behind it are not"},
     FragmentsJoined},
    {{"beam_cache_not_reordered", "the cache belongs to other rows of the batch",
      "reorder the cache with the beams", "past_k = past_k.index_select(0, beam_idx)",
      "cache = gather(cache, beam);", "swap two beams by force: outputs must follow"},
     BeamCache},
    {{"cache_dtype_reinterpreted", "the cache's bits are read as the other 16-bit type",
      "read the cache in the type it was written in", "past_k = past_k.to(k.dtype)  # not .view",
      "float x = F16ToFloat(bits);", "replay the cache with its bits read as the other type"},
     CacheReinterpreted},
    {{"prefix_reuse_misaligned",
      "a reused prefix is counted in another tokenisation, so that part of the prompt is never "
      "seen",
      "count what is reused in the tokens that are run", "past_len = past_k.size(2)",
      "past = cache.length();", "change a token at the end of the prefix: nothing moves"},
     PrefixMisaligned},
};

}  // namespace

std::span<const AttentionFault> OfCache() { return kFaults; }

}  // namespace heed::attention_faults
