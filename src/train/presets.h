// What a preset or a built-in task says of training; the models stand in model/config.h.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "train/settings.h"

namespace heed {

// What suits a built-in task better than the settings' own defaults; nothing for other texts.
void ApplyTask(const std::vector<std::string>& data, ModelConfig* model, TrainSettings* train);

// What a baseline is without, where a preset or a task said otherwise.
void ApplyKind(ModelKind kind, ModelConfig* model);

// Fills in the preset's sizes. Error: an unknown name, with the nearest.
Status ApplyPreset(const std::string& name, ModelConfig* model, TrainSettings* train);

// Fills in what the recipe changes: of `fast`, the shortest way to nanoGPT's result on its smallest
// Shakespeare model (docs/recipes.md has each part's worth). Error: an unknown name.
Status ApplyRecipe(const std::string& name, ModelConfig* model, TrainSettings* train);

}  // namespace heed
