#include "train/presets.h"

#include <vector>

#include "base/nearest.h"

namespace heed {

void ApplyTask(const std::vector<std::string>& data, ModelConfig* model, TrainSettings* train) {
  if (data.size() != 1) return;
  if (data.front() == "builtin:stories") {
    // Within 3 % of the least loss there is; rotated positions learn sooner to look back for names.
    model->position = Position::kRope;
    train->batch_size = 16;
    train->learning_rate = 4e-3;
    train->min_lr = 1e-5;
    train->max_iters = 6000;
  } else if (data.front() == "builtin:adder") {
    // gpt-nano then adds without a mistake.
    train->batch_size = 64;
    train->learning_rate = 2e-3;
    train->max_iters = 6000;
  }
}

void ApplyKind(ModelKind kind, ModelConfig* model) {
  model->model = kind;
  if (kind == ModelKind::kAveraged && model->position == Position::kRope) {
    model->position = Position::kLearned;
  }
  if (kind == ModelKind::kBigramEmbedding) {
    model->n_layer = 0;
    model->n_head = model->n_kv_head = 1;
    model->position = Position::kNone;
    model->bias = model->tied = false;
    model->dropout = 0;
  }
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

Status ApplyRecipe(const std::string& name, ModelConfig* model, TrainSettings* train) {
  if (name != "fast") return BadRequest("--recipe", "'" + name + "'", "fast");
  model->position = Position::kRope;
  train->optimizer = Optimizer::kMuon;
  train->dtype = Arithmetic::kBf16;
  train->batch_size = 16;
  train->learning_rate = 4e-3;
  train->warmup_iters = 20;
  train->max_iters = 230;
  return {};
}

}  // namespace heed
