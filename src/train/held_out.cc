#include "train/held_out.h"

#include <algorithm>

namespace heed {

HeldOutLoss MeasureHeldOut(const Gpt& model, const Tokenizer& tokenizer, const BatchSource& source,
                           int64_t wanted, int64_t B, Activations* activations,
                           const std::function<void(int64_t)>& watch) {
  const int64_t windows = std::min(source.ValWindows(), wanted);
  HeldOutLoss loss;
  Batch batch;
  for (int64_t first = 0; first < windows; first += B) {
    source.ValBatch(first, std::min(B, windows - first), windows, &batch);
    const Pass pass = model.NewPass(batch.B, batch.T);
    loss.sum += model.Loss(pass, batch.tokens.data(), batch.targets.data(), activations);
    for (const int32_t target : batch.targets) {
      if (target < 0) continue;
      ++loss.targets;
      loss.bytes += static_cast<int64_t>(tokenizer.TokenBytes(target).size());
    }
    if (watch) watch(first + batch.B);
  }
  return loss;
}

}  // namespace heed
