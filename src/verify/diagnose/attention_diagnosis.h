// The diagnosis of one attention layer.
#pragma once

#include <string>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// Errors: ReadAttentionDump's; a result that is not finite and that no known fault makes so.
Result<Diagnosis> DiagnoseAttention(const TensorFile& dump, const std::string& where,
                                    const SettingTexts& given);

}  // namespace heed
