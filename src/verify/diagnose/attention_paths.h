// What one result of a layer cannot show: results of the same x by the program's other paths, and
// its gradients.
#pragma once

#include <string>

#include "base/status.h"
#include "io/tensor_file.h"
#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// Refines what `dump` alone says of y by y_eval (the same x in evaluation), y_first (the same call
// as the first that the program answers), both of y's shape, and by grad.NAME where there is dy.
// Errors (kFormat): a tensor of another shape.
Status JudgeOtherPaths(const TensorFile& file, const std::string& where, const AttentionDump& dump,
                       Diagnosis* diagnosis);

}  // namespace heed
