// Diagnosis of a saved language-model loss: logits [B, T, V] or [T, V], targets [B, T] aligned with
// them or the tokens themselves, and the loss or perplexity that somebody reported.
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

// Negative targets are ignored. The reported number is the tensor `loss` or `perplexity`, of one
// element. Errors (kFormat) name the tensor.
Result<Diagnosis> DiagnoseLoss(const TensorFile& dump, const std::string& where,
                               const SettingTexts& given);
std::span<const FaultKind> LossFaults();
// What a fault makes of such a dump; nothing where it does not show.
Result<std::optional<FaultView>> ViewLossFault(const TensorFile& dump, const SettingTexts& given,
                                               const std::string& id);

}  // namespace heed
