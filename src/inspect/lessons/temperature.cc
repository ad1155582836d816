#include "infer/sampler.h"
#include "inspect/lessons/lesson.h"

namespace heed {

Result<std::vector<Step>> TellTemperature(const LessonInput&) {
  const std::vector<float> logits = {2, 1, 0};
  const std::vector<std::string> tokens = {"a", "b", "c"};
  std::vector<Step> steps = {{"logits",
                              "what the model says of three tokens",
                              "V",
                              {3},
                              {logits.begin(), logits.end()},
                              "",
                              {},
                              tokens}};
  const auto add = [&](const char* name, double temperature, const char* formula,
                       const char* note) {
    steps.push_back({name,
                     formula,
                     "V",
                     {3},
                     SamplingProbabilities({.temperature = temperature}, logits, {}),
                     note,
                     {},
                     tokens});
  };
  add("T = 1", 1, "softmax(logits / 1)", "");
  add("T = 0.5", 0.5, "softmax(logits / 0.5)", "Sharper: differences of logits are doubled.");
  add("T = 2", 2, "softmax(logits / 2)", "Flatter: differences of logits are halved.");
  add("T = 0", 0, "all on the largest logit",
      "Greedy. No division by 0 takes place: the limit is taken, not computed.");
  return steps;
}

}  // namespace heed
