// What goes wrong in whole models, with the deviations of a replay that show it: those of the model
// itself, and those that its norms, feed-forward layers and attention bring.
#pragma once

#include <span>
#include <vector>

#include "model/config.h"
#include "verify/diagnose/model_case.h"
#include "verify/diagnose/replay.h"

namespace heed {

// Of the model itself.
std::span<const FaultKind> ModelFaults();
std::vector<Deviation<ModelRecipe>> ModelDeviations(const ModelConfig& config, const ModelCase& c);

}  // namespace heed
