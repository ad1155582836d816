// Diagnosis of a saved layer norm (Ba et al. 2016) or RMS norm (Zhang, Sennrich 2019):
// x [.., C], weight [C], bias [C] where there is one, y like x.
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

// Settings: kind (layernorm or rmsnorm; layernorm when not stated), norm_eps (1e-5 and 1e-6 are
// tried when not stated). Errors (kFormat, kRequest) name the tensor or setting.
Result<Diagnosis> DiagnoseNorm(const TensorFile& dump, const std::string& where,
                               const SettingTexts& given);
std::span<const FaultKind> NormFaults();
// What a fault makes of such a dump; nothing where it does not show.
Result<std::optional<FaultView>> ViewNormFault(const TensorFile& dump, const SettingTexts& given,
                                               const std::string& id);

}  // namespace heed
