#include "kernels/simd/embedding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/embedding.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

void EmbeddingForward(const EmbeddingArgs<>& args) {
  const int64_t C = args.C;
  const Split split = SplitRows(args.B * args.T_, C);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    for (int64_t row = split.begin(piece); row < split.end(piece); ++row) {
      const float* token = args.wte + args.tokens[row] * C;
      float* x = args.x + row * C;
      if (args.wpe == nullptr) {
        std::memcpy(x, token, C * sizeof(float));
        continue;
      }
      const int64_t b = row / args.T_;
      const int64_t offset = args.offsets == nullptr ? args.offset : args.offsets[b];
      const float* position = args.wpe + (offset + row % args.T_) * C;
      ForVectors(C, [&](size_t i, auto lanes) HWY_ATTR {
        lanes.Store(hn::Add(lanes.Load(token + i), lanes.Load(position + i)), x + i);
      });
    }
  });
}

// Columns of one piece of the backward pass: two cache lines.
constexpr int64_t kColumns = 32;

HWY_INLINE void AddTo(float* y, const float* x, size_t n) {
  ForVectors(n, [&](size_t i, auto lanes) HWY_ATTR {
    lanes.Store(hn::Add(lanes.Load(y + i), lanes.Load(x + i)), y + i);
  });
}

// Each piece owns some columns of both tables and walks over all rows, so that no two pieces add
// to one number.
void EmbeddingBackward(const EmbeddingArgs<>& args) {
  const int64_t C = args.C;
  const bool inline_work = args.B * args.T_ * C <= kGrain;
  const Split split = SplitBy(C, inline_work ? std::max<int64_t>(C, 1) : kColumns);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    const int64_t at = split.begin(piece), width = split.length(piece);
    for (int64_t t = 0; t < args.T_; ++t) {
      float* dwpe = args.dwpe == nullptr ? nullptr : args.dwpe + t * C + at;
      if (dwpe != nullptr && !args.accumulate) std::memset(dwpe, 0, width * sizeof(float));
      for (int64_t b = 0; b < args.B; ++b) {
        const int64_t row = b * args.T_ + t;
        const float* dx = args.dx + row * C + at;
        AddTo(args.dwte + args.tokens[row] * C + at, dx, width);
        if (dwpe != nullptr) AddTo(dwpe, dx, width);
      }
    }
  });
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(EmbeddingForward);
HWY_EXPORT(EmbeddingBackward);

void EmbeddingForward(const EmbeddingArgs<>& args) { HWY_DYNAMIC_DISPATCH(EmbeddingForward)(args); }
void EmbeddingBackward(const EmbeddingArgs<>& args) {
  HWY_DYNAMIC_DISPATCH(EmbeddingBackward)(args);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
