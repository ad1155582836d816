#include "train/presets.h"

#include <vector>

#include "base/nearest.h"

namespace heed {

void ApplyTask(const std::vector<std::string>& data, TrainSettings* train) {
  if (data.size() != 1 || !data.front().starts_with("builtin:")) return;
  // Small models that see every example often enough: gpt-nano adds without a mistake.
  train->learning_rate = data.front() == "builtin:adder" ? 2e-3 : 3e-3;
  train->max_iters = 6000;
  if (data.front() == "builtin:adder") train->batch_size = 64;
}

Status ApplyPreset(const std::string& name, ModelConfig* model, TrainSettings* train) {
  const Preset* preset = FindPreset(name);
  if (preset == nullptr) {
    std::vector<std::string> known;
    std::string all;
    for (const Preset& p : Presets()) {
      known.emplace_back(p.name);
      all += (all.empty() ? "" : ", ") + std::string(p.name);
    }
    const std::string nearest = NearestName(name, known);
    return BadRequest("--preset", "'" + name + "'", "one of " + all,
                      nearest.empty() ? "" : "did you mean " + nearest + "?");
  }
  *model = preset->model;
  if (preset->batch_size > 0) train->batch_size = preset->batch_size;
  // nanoGPT's settings for its larger Shakespeare model.
  if (name == "shakespeare") train->max_iters = 5000;
  return {};
}

}  // namespace heed
