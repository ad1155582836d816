// One way to compute causal self-attention: every stage with the choice that was made in it. The
// defaults are right; a fault is another choice.
#pragma once

#include <array>
#include <cstdint>

#include "nn/rope.h"

namespace heed {

enum class Slot : uint8_t { kQ, kK, kV };

// Bits of q_proj, k_proj, v_proj and o_proj.
enum Projections : uint8_t { kQProj = 1, kKProj = 2, kVProj = 4, kOProj = 8, kAllProj = 15 };

// x [B, T, C] -> q [B, H, T, D], k and v [B, Hkv, T, D].
struct ProjectChoice {
  std::array<Slot, 3> source = {Slot::kQ, Slot::kK, Slot::kV};  // whose projection q, k, v take
  uint8_t without_bias = 0;                                     // Projections
  uint8_t transposed = 0;                                       // Projections, square weights
  // A fused weight lies in so many pieces, each with its share of q's heads, of k's, of v's: 1 is
  // blocks, Hkv is per head. 0: as stated.
  int64_t fused_pieces = 0;
  std::array<Slot, 3> fused_order = {Slot::kQ, Slot::kK, Slot::kV};
  bool split_by_view = false;  // [B, T, H·D] read as [B, H, T, D] in place
  bool batch_as_time = false;  // attention along the batch axis
  bool operator==(const ProjectChoice&) const = default;
};

enum class NormPlace : uint8_t { kNone, kBeforeRotation, kAfterRotation };

// Norm of queries and keys, each token's over its head.
struct HeadNormChoice {
  NormPlace place = NormPlace::kNone;
  bool q = true, k = true;
  bool layer = false;      // LayerNorm; else RMS norm
  bool all_heads = false;  // one mean over all heads of a token
  bool gain = true, bias = true;
  double gain_offset = 0;
  double eps = 1e-6;
  bool operator==(const HeadNormChoice&) const = default;
};

// What a token's position is counted by.
enum class PositionBase : uint8_t {
  kIndex,          // of the row, padding and other documents among it
  kGiven,          // position_ids
  kTokens,         // tokens that are no padding; padding before them stands at 0
  kTokensPadsOne,  // the same with all padding at 1, as Hugging Face has it
  kDocument,       // tokens of its document
};

enum class PositionChoice : uint8_t {
  kAbsolute,       // P + i
  kRestart,        // i, though P positions are cached
  kChunkConstant,  // P for the whole chunk
  kOneTooFar,      // P + i + 1
  kKeptRows,       // P + i without the number of the first position
};

// What a partial rotation takes from the width of the head, not from rotary_dim.
enum class WidthChoice : uint8_t { kRotary, kWholeHead, kHeadExponent, kHeadPartner, kHeadBoth };

// What is rounded to 16 bits on the way to the angles.
enum class AngleRounding : uint8_t { kNone, kPositions, kFrequencies, kAngles, kTables, kAll };

enum class RotationForm : uint8_t {
  kRotation,
  kMixedLayouts,  // tables in the other pairing's layout than the channels
  kCosPlusSin,    // x · (cos + sin)
};

struct RotateChoice {
  bool interleaved = false;
  double theta = 10000;
  RopeScaling scaling;                           // of models
  int64_t first = 0;                             // the number of the first position
  double q_sense = 1, k_sense = 1, v_sense = 0;  // times the angle: 0 none, -1 backwards, 2 twice
  bool by_head = false;                          // angles by the index of the head, not of time
  PositionBase base = PositionBase::kIndex;
  PositionChoice position = PositionChoice::kAbsolute;
  // Keys were turned in pieces, each from position 0: of so many rows, or one so long and the rest.
  int64_t key_piece = 0, first_piece = 0;
  WidthChoice width = WidthChoice::kRotary;
  AngleRounding rounding = AngleRounding::kNone;
  bool rounding_is_half = false;  // binary16 in place of bfloat16
  RotationForm form = RotationForm::kRotation;
  bool q_halves = false, k_halves = false;  // interleaved results left as two halves
  bool operator==(const RotateChoice&) const = default;
};

enum class CacheChoice : uint8_t {
  kRead,
  kHole,          // a slot of zeros between past and new
  kHoleLastLost,  // the same, and the last new token is beyond the end
  kNotRead,
  kTurnedAgain,    // cached keys rotated once more, by their own positions
  kJoinedFlat,     // past and new joined as if there were one head
  kBatchReversed,  // caches of other beams
  kBatchRolled,
  kBatchRolledBack,
  kBf16ReadAsF16,
  kF16ReadAsBf16,
  kSwapped,     // past_k for past_v
  kEndSkipped,  // the last `skipped` rows are never seen
  // A ring that is full, into which the whole chunk is written before it is read.
  kRingEarly,    // in the order of time
  kRingBySlot,   // in the order of its slots
  kRingClamped,  // the chunk over the newest rows
};

enum class HeadMap : uint8_t {
  kGrouped,           // h / (H / Hkv)
  kTiled,             // h mod Hkv
  kByKvCount,         // h / Hkv, the last head where that is beyond
  kByKvCountWrapped,  // h / Hkv mod Hkv
  kFirst,             // 0 for all
  kAlongTime,         // repeated along the positions, then viewed as H heads
};

struct CacheStage {
  CacheChoice cache = CacheChoice::kRead;
  int64_t skipped = 0;
  HeadMap heads = HeadMap::kGrouped;
  bool operator==(const CacheStage&) const = default;
};

enum class AlibiChoice : uint8_t {
  kNone,
  kRight,
  kFromZero,    // slopes begin at 2^0
  kOneSeries,   // 2^(-8 h / H) for any H
  kOddsFirst,   // of the next power of two: every other slope from the second, then the others
  kBackwards,   // farther keys are raised
  kByPosition,  // by the key's index, not by its distance: the same to a constant for each row
};

struct ScoreChoice {
  double scale = 1;
  AlibiChoice alibi = AlibiChoice::kNone;
  bool alibi_scaled = false;  // added to the products before they are scaled
  bool operator==(const ScoreChoice&) const = default;
};

enum class MaskShape : uint8_t {
  kCausal,
  kNone,
  kStrictlyUpper,  // later keys alone
  kUpper,          // itself and later keys
  kNoDiagonal,     // earlier keys alone
  kOneMore,        // one later key
  kTopLeft,        // j <= i although P positions are cached
};

enum class HiddenAs : uint8_t {
  kLeftOut,
  kZeroedAfter,     // weights zeroed after softmax, rows not renormalised
  kVisibleRaised,   // 1 added to visible scores
  kHiddenRaised,    // 1 added to hidden scores
  kRaisedUnscaled,  // 1 added to visible products before scaling
  kFilled,          // scores replaced by `fill`
  kLowered,         // `fill` added to scores
  kCapped,          // fill · tanh(s / fill) after -inf was put in
  kSwamped,         // visible scores vanish beside a huge constant
  kOverflowed,      // 0 times infinity stands at the visible ones
};

// What a row without visible keys becomes.
enum class EmptyRow : uint8_t {
  kNan,
  kZero,
  kUniform,
  kUnmasked,
  kHiddenOnce,  // shared by keys that either the triangle or the padding hides, not both
};

enum class PadChoice : uint8_t { kHidden, kSeen, kReversed, kRaised };

// Whose padding hides keys of row b and head h.
enum class MaskRow : uint8_t {
  kOwn,
  kHeadsLead,   // heads folded first, the mask repeated for each head
  kBatchLeads,  // the batch folded first, the mask tiled
  kFirst,       // that of row 0
};

struct MaskChoice {
  MaskShape shape = MaskShape::kCausal;
  PadChoice pads = PadChoice::kHidden;
  bool documents = true;  // tokens of other documents are hidden
  MaskRow row = MaskRow::kOwn;
  int64_t window = 0;
  HiddenAs hidden = HiddenAs::kLeftOut;
  double fill = 0;
  EmptyRow empty = EmptyRow::kNan;
  bool operator==(const MaskChoice&) const = default;
};

enum class SoftmaxKind : uint8_t {
  kKeys,
  kQueries,
  kHeads,
  kBatch,
  kTileMaximum,           // weights by the tile's maximum, sums carried by the running one
  kTileMaximumUncarried,  // weights by the tile's maximum, nothing carried
  kPlusOneUnshifted,      // exp(s - m) / (1 + sum exp(s - m))
  kMaximumOfKeys,         // the maximum of each row, the sum of each column
  kMaximumOfQueries,      // the reverse
  kOverflow32,            // no maximum subtracted, float32
};

struct SoftmaxChoice {
  SoftmaxKind kind = SoftmaxKind::kKeys;
  int64_t tile = 0;
  bool operator==(const SoftmaxChoice&) const = default;
};

enum class MergeKind : uint8_t {
  kRight,
  kUntransposed,  // [B, H, T, D] read as [B, T, H·D] in place
  kHeadsLead,     // [H·B, ...] split as (B, H)
  kBatchLeads,    // [B·H, ...] split as (H, B)
};

struct CombineChoice {
  bool transposed = false;  // weights used transposed
  MergeKind merge = MergeKind::kRight;
  bool plus_input = false;  // y is x + attention
  bool operator==(const CombineChoice&) const = default;
};

struct AttentionRecipe {
  ProjectChoice project;
  HeadNormChoice norm;
  RotateChoice rotate;
  CacheStage cache;
  ScoreChoice score;
  MaskChoice mask;
  SoftmaxChoice softmax;
  CombineChoice combine;
  bool operator==(const AttentionRecipe&) const = default;
};

}  // namespace heed
