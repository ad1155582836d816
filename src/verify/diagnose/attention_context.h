// What a layer is told besides its numbers and weights: which keys are padding, which tokens belong
// together, where they stand, and what its queries and keys go through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "inspect/attention_trace.h"
#include "io/tensor_file.h"
#include "verify/diagnose/attention_recipe.h"

namespace heed {

// The gain of a norm over the heads of queries or keys.
struct HeadGain {
  std::string name;            // in the file
  std::vector<double> values;  // [heads·D], repeated where one head's were given; or empty
  std::vector<double> bias;    // the same
  bool all_heads = false;      // [heads·D] was given: one mean over all heads
};

struct AttentionContext {
  std::vector<int64_t> attention_mask;  // [B, S], 0 for padding; empty where there is none
  std::vector<int64_t> document_ids;    // [B, T]; empty for one document
  std::vector<int64_t> position_ids;    // [B, T]; empty where the index tells
  HeadGain q_norm, k_norm;
  std::optional<NormPlace> qk_norm;  // stated
  std::optional<bool> qk_layernorm;  // stated; a bias states it too
  std::optional<double> norm_eps;
  std::optional<EmptyRow> rows_without_keys;  // stated
  bool alibi = false;

  bool Padded() const { return !attention_mask.empty(); }
  bool Packed() const { return !document_ids.empty(); }
  bool HasGains() const { return !q_norm.values.empty(); }
  bool HasNorm() const { return qk_norm && *qk_norm != NormPlace::kNone; }
  bool HasNormBias() const { return !q_norm.bias.empty(); }
  // Whether a row begins with padding, and so has queries without a key.
  bool PaddedLeft(const AttentionCase& attention) const;
};

inline const AttentionContext kNoContext;

// Reads attention_mask [B, S] (0 and 1, as Hugging Face has it), document_ids [B, T],
// position_ids [B, T] or [1, T], q_norm.weight and k_norm.weight, or q_layernorm.weight and
// k_layernorm.weight, with or without .bias ([D], [heads, D] or [heads·D], behind any prefix), and
// the settings alibi, qk_norm (none, before_rope or after_rope), qk_layernorm, norm_eps and
// rows_without_keys (zero, mean or unmasked). A mask without padding and ids of a single document
// say nothing. Errors (kFormat, kRequest) name the tensor: another shape, floats for integers, a
// mask of other numbers, documents behind a cache, one norm or bias of two, a bias of what is no
// LayerNorm.
Result<AttentionContext> ReadAttentionContext(const TensorFile& file, const std::string& where,
                                              const SettingTexts& given,
                                              const AttentionCase& attention);

// The settings alone. Errors (kRequest): another text;
// alibi with rope.
Result<AttentionContext> ParseContextSettings(const SettingTexts& texts, const std::string& where,
                                              const AttentionSettings& settings);

// 2^(-8 (h + shift) / n) for h from 1 where n heads are a power of two; else those of the next
// smaller one, and every other of the next larger one (Press et al. 2022, appendix of the code).
std::vector<double> AlibiSlopes(int64_t heads, double shift);
// As MPT has them: of those of the next power of two every other one from the second, then others.
std::vector<double> AlibiSlopesOddsFirst(int64_t heads);

}  // namespace heed
