// Diagnosis of a whole model's saved logits against the folder that the weights came from.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/model_replay.h"

namespace heed {

// tokens [B, T] and logits [B, T, V]; attention_mask [B, T], 1 for the tokens of a row, which
// stand together; decode_logits [B, n, V] of the last n positions, behind a cache; and any
// activation of rows without padding under Hugging Face's names for modules
// ("model.layers.0.self_attn", "h.0.mlp.c_fc", "hidden_states.1") or TransformerLens's hooks
// ("blocks.0.attn.hook_pattern"). Errors (kFormat, kRequest, kIo) name the tensor or file: see
// LoadModel.
Result<Diagnosis> DiagnoseModel(const TensorFile& dump, const std::string& where,
                                const SettingTexts& given, const std::string& model_folder);
// What a fault makes of a model's logits, without padding; nothing where it does not show.
std::optional<FaultView> ViewModelFault(Gpt* model, ModelInput input, const std::string& id);

}  // namespace heed
