// What a preset says of training; its model stands in model/config.h.
#pragma once

#include <string>

#include "base/status.h"
#include "model/config.h"
#include "train/settings.h"

namespace heed {

// Fills in the preset's sizes. Error: an unknown name, with the nearest.
Status ApplyPreset(const std::string& name, ModelConfig* model, TrainSettings* train);

}  // namespace heed
