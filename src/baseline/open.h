// A model's folder, whatever kind of model it holds.
#pragma once

#include <string>

#include "base/status.h"
#include "model/language_model.h"

namespace heed {

// config.json says what it is. Errors: as LoadModel and Ngram::Load.
Result<LanguageModel> OpenModel(const std::string& folder, const Kernels& kernels);

}  // namespace heed
