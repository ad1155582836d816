// The catalogue of what goes wrong in causal self-attention, each fault with the choices that
// replay it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "verify/diagnose/attention_recipe.h"
#include "verify/diagnose/attention_replay.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// What a fault needs to know about the case at hand.
struct AttentionFacts {
  int64_t B = 0, T = 0, P = 0, S = 0, C = 0, H = 0, Hkv = 0, D = 0;
  int64_t rotary = 0;  // rotated channels, 0 without RoPE
  int64_t first = 0;   // the number of the first position
  double theta = 0;
  int64_t window = 0;
  int64_t equal_rows = 0;    // so many positions from the first are right
  double largest_score = 0;  // by the right formula, of either sign
  bool weights = false;      // x and projections, not q, k and v
  bool fused = false;        // q, k and v lie in one weight
  bool layout_stated = false;
  bool linear_stated = false;  // weights are known to be [out, in]
  bool pairing_stated = false;
  bool half = false;               // something was computed in float16
  uint8_t biases = 0, square = 0;  // Projections
  bool padded = false, packed = false;
  bool empty_rows_stated = false;  // what a row without a key becomes
  bool rows_differ = false;        // in padding or documents
  bool positions_given = false;
  AlibiChoice alibi = AlibiChoice::kNone;
  HeadNormChoice norm;
  bool norm_stated = false;       // where it stands
  bool norm_kind_stated = false;  // LayerNorm or RMS norm
  bool gains = false;             // the norm has a weight
  bool norm_bias = false;         // and a bias
};

using Change = std::function<void(AttentionRecipe*)>;

// One way to make a fault.
struct Variant {
  Change change;
  std::string detail;  // "tiles of 4 keys"; may be empty
};

// A fault with a number that is fitted.
struct FittedFault {
  std::vector<double> grid;  // ascending, where to begin
  bool whole = false;        // the grid is all there is
  std::function<void(double, AttentionRecipe*)> change;
  std::function<bool(double)> belongs;  // false where the number makes it right, or another fault
  std::function<std::string(double)> detail;
};

struct AttentionFault {
  FaultKind kind;
  std::vector<Variant> (*variants)(const AttentionFacts&) = nullptr;
  std::vector<FittedFault> (*fits)(const AttentionFacts&) = nullptr;
};

// In the order in which equal explanations are listed.
std::span<const AttentionFault> AttentionFaultTable();
std::span<const FaultKind> AttentionFaults();

}  // namespace heed
