// What a dump of a whole model holds: tokens, logits, and activations under the names that others
// have for them.
#pragma once

#include <vector>

#include "model/config.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/model_replay.h"

namespace heed {

// What a search reads of a dump.
struct ModelCase {
  ModelInput input;
  std::vector<Observed> theirs;  // in the order of ModelReplay::Run's outputs
  bool padded = false;
  ModelRecipe right;
};

// Tensors as DiagnoseModel has them. Errors: kFormat, kRequest.
Result<ModelCase> ReadModelCase(Dump* dump, const ModelConfig& config);

}  // namespace heed
