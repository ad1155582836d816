// The diagnosis of one attention layer.
#pragma once

#include <string>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// Errors: ReadAttentionDump's; a result that is not finite and that no known fault makes so.
Result<Diagnosis> DiagnoseAttention(const TensorFile& dump, const std::string& where,
                                    const SettingTexts& given);

// Of a dump that is at hand; results that are not finite and that no known fault makes so are
// unexplained.
Diagnosis DiagnoseAttention(const AttentionDump& dump);

}  // namespace heed
