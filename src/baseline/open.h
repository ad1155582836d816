// A model's folder, whatever kind of model it holds.
#pragma once

#include <string>

#include "base/status.h"
#include "model/language_model.h"
#include "model/parameter_loader.h"

namespace heed {

// config.json says what it is; the model is for reading alone. Errors: as LoadModel and
// Ngram::Load.
Result<LanguageModel> OpenModel(const std::string& folder, const Kernels& kernels,
                                Weights weights = Weights::kInPlace);

}  // namespace heed
