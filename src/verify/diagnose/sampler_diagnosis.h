// Diagnosis of a saved sampler: logits [V] or [N, V], the probabilities that somebody draws from,
// alike.
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

// `previous` holds the ids so far, [n] for every row or [N, n] with -1 for none. Settings:
// temperature (1), top_k (0: all), top_p (1), min_p (0), repetition_penalty (1). Logits of -inf are
// tokens ruled out beforehand. Errors (kFormat, kRequest) name the tensor or setting.
Result<Diagnosis> DiagnoseSampler(const TensorFile& dump, const std::string& where,
                                  const SettingTexts& given);
std::span<const FaultKind> SamplerFaults();
// What a fault makes of such a dump; nothing where it does not show.
Result<std::optional<FaultView>> ViewSamplerFault(const TensorFile& dump, const SettingTexts& given,
                                                  const std::string& id);

}  // namespace heed
