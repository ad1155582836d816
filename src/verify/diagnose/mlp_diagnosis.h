// Diagnosis of a saved feed-forward layer: x [.., C], its weights under their model's names, y.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/replay.h"

namespace heed {

// Weights are c_fc and c_proj, with c_gate when gated (GPT-2, heed), gate_proj, up_proj and
// down_proj (Llama), or w1, w3 and w2 (gate, up and down, llama2.c), behind any prefix; biases
// beside them. Layout Linear or Conv1D by shape; both are tried where c_* weights are square.
// Setting: mlp (gelu or swiglu; by the names when not stated). Errors (kFormat, kRequest) name the
// tensor or setting.
Result<Diagnosis> DiagnoseMlp(const TensorFile& dump, const std::string& where,
                              const SettingTexts& given);
std::span<const FaultKind> MlpFaults();
// What a fault makes of such a dump; nothing where it does not show.
Result<std::optional<FaultView>> ViewMlpFault(const TensorFile& dump, const SettingTexts& given,
                                              const std::string& id);

}  // namespace heed
