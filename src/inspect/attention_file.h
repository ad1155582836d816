// An AttentionCase read from a file of tensors, and its trace written.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "inspect/attention_trace.h"
#include "io/tensor_file.h"

namespace heed {

// How torch.nn.Linear keeps a weight, [out, in]; or also GPT-2's Conv1D, [in, out], where the
// shapes of q_proj, k_proj, v_proj and o_proj say so. The latter is for what others saved: x may
// then be [T, C], and o_proj may be missing.
enum class WeightLayouts { kLinear, kByShape };

// Reads
// - x [B, T, C] with q_proj.weight [H·D, C], k_proj.weight and v_proj.weight [Hkv·D, C], or with
//   c_attn.weight [C, (H + 2 Hkv)·D] (GPT-2's Conv1D) or its transpose, told apart by shape, also
//   called in_proj_weight (torch.nn.MultiheadAttention); or
// - q [B, H, T, D] with k and v [B, Hkv, T, D];
// and o_proj.weight [C, H·D], also called out_proj.weight, or c_proj.weight laid out like c_attn:
// with x it is needed; biases beside them; past_k and past_v; dy. Weights' names may have a prefix
// that ends in '.', '/' or '_' when one tensor alone matches or when the queries' weight has it.
// Settings are the file's own, under those that were `given`; see ParseAttentionSettings.
// Errors (kFormat, kRequest) name `where` and the tensor or setting: missing tensors, wrong ranks
// and sizes, head counts that neither settings nor shapes tell, empty tensors, above 2^26 scores.
Result<AttentionCase> ReadAttentionCase(const TensorFile& file, const std::string& where,
                                        const SettingTexts& given = {},
                                        WeightLayouts layouts = WeightLayouts::kLinear);

// The tensor called `word`, with `prefix` before it or any that ends in '.', '/' or '_'; or null.
// Error (kFormat): several prefixes.
Result<const TensorEntry*> FindWeight(const TensorFile& file, const std::string& where,
                                      const std::string& prefix, const std::string& word);

// Writes safetensors of the case's dtype with its settings as metadata. Errors: WriteSafetensors'.
Status WriteTrace(const std::string& path, const AttentionCase& attention,
                  const std::vector<TracedTensor>& traced, bool overwrite);

}  // namespace heed
