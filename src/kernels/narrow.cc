#include "kernels/narrow.h"

#include <algorithm>

namespace heed {

NarrowSplit::NarrowSplit(const NarrowGpt& model, int64_t B, int64_t T) {
  constexpr int64_t kMostPieces = 8;
  constexpr int64_t kGrain = 1 << 19;  // vector operations: some hundred microseconds
  const int64_t groups = (B + kNarrowLanes - 1) / kNarrowLanes;
  const auto layers = static_cast<int64_t>(model.blocks.size());
  // Three products for each weight, and some 30 operations for each pair of positions.
  const int64_t work = T * (3 * model.parameters + layers * model.H * T * 15);
  const int64_t each = std::max(
      {int64_t{1}, (groups + kMostPieces - 1) / kMostPieces, kGrain / std::max<int64_t>(1, work)});
  size = each * kNarrowLanes;
  pieces = std::max<int64_t>(1, (groups + each - 1) / each);
}

NarrowWorkspace::NarrowWorkspace(const NarrowGpt& model, int64_t T) {
  int64_t vectors = 0;
  const auto take = [&](int64_t n) {
    const int64_t at = vectors;
    vectors += n;
    return at;
  };
  const int64_t C = model.C, inner = T * model.inner;
  tokens = take(T);
  targets = take(T);
  x = take(T * C);
  normed = take(T * C);
  dnormed = take(T * C);
  blocks.resize(model.blocks.size());
  for (Block& block : blocks) {
    block.xhat_1 = take(T * C);
    block.rstd_1 = take(T);
    block.qkv = take(T * model.qkv_width());
    block.weights = take(model.H * T * (T + 1) / 2);
    block.inverse = take(model.H * T);
    block.z = take(T * model.q_width());
    block.xhat_2 = take(T * C);
    block.rstd_2 = take(T);
    block.h = take(inner);
    block.slope = take(inner);
    block.silu = take(model.swiglu ? inner : 0);
  }
  xhat = take(T * C);
  rstd = take(T);
  logits = take(T * model.V);
  dqkv = take(T * model.qkv_width());
  dz = take(T * model.q_width());
  gradients = take(model.parameters);
  // Floats, and not vectors: enough where a vector is one.
  dwte = take(model.V * C);
  floats = vectors * kNarrowLanes;
}

}  // namespace heed
