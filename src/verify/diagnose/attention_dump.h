// Somebody's attention as it was saved: the case, and what their program made of it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "inspect/attention_file.h"
#include "io/tensor_file.h"
#include "verify/diagnose/attention_replay.h"

namespace heed {

// One of their results.
struct TheirTensor {
  std::string name;
  Stage stage = Stage::kY;
  std::vector<int64_t> shape;
  std::vector<double> values;
  DType dtype = DType::kF32;   // see EffectiveDType
  DType stored = DType::kF32;  // as the file has it
};

struct AttentionDump {
  AttentionCase attention;
  AttentionContext context;
  std::vector<TheirTensor> theirs;  // in the order of the computation, at least one
  std::set<std::string> stated;     // names of settings
  bool linear_stated = false;       // weights are [out, in], also where they are square
  double dropout = 0;               // stated probability that a weight was dropped
  DType output = DType::kF32;       // the type that the last result fits in
  DType coarsest = DType::kF32;     // of everything read
};

// Reads a case as ReadAttentionCase does (weights of either layout), y and any of q k v q_rot k_rot
// scores pattern z merged. Without a projection y is [B, T, H·D] or [B, H, T, D]. A single sequence
// may lack the axis B. Scores below -1e8 count as -inf. The setting `dropout` says that the layer
// ran as in training. What ReadAttentionContext knows is read as well, and rows of padding become 0
// (see BlankPadding).
// Errors (kFormat, kRequest): those of both; a dropout outside [0, 1); no result at all; a result
// of another shape; an input that is not finite.
Result<AttentionDump> ReadAttentionDump(const TensorFile& file, const std::string& where,
                                        const SettingTexts& given);

// The results alone, of a case that is known. Errors (kFormat): as above.
Result<std::vector<TheirTensor>> ReadAttentionResults(const TensorFile& file,
                                                      const std::string& where,
                                                      const AttentionCase& attention);

// That tensor as another result where `dump` has its last one. Errors (kFormat): as above.
Result<TheirTensor> ReadAttentionResult(const TensorFile& file, const std::string& where,
                                        const std::string& name, const AttentionDump& dump);

}  // namespace heed
