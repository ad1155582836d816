#include <hwy/targets.h>

#include "kernels/kernels.h"
#include "kernels/simd/adamw.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/cross_entropy.h"
#include "kernels/simd/dropout.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/embedding.h"
#include "kernels/simd/matmul.h"
#include "kernels/simd/narrow.h"
#include "kernels/simd/norm.h"
#include "kernels/simd/rope.h"
#include "kernels/simd/swiglu.h"

namespace heed {
namespace {

// The targets of this machine as Highway numbers them, best first; found before any is forced.
const std::vector<int64_t>& Targets() {
  static const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  return targets;
}

}  // namespace

const Kernels& SimdKernels() {
  static constexpr Kernels kTable = {
      .name = "simd",
      .matmul = simd::Matmul,
      .norm_forward = simd::NormForward,
      .norm_apply = simd::NormApply,
      .norm_backward = simd::NormBackward,
      .rope = simd::Rope,
      .attention_forward = simd::AttentionForward,
      .attention_backward = simd::AttentionBackward,
      .swiglu_forward = simd::SwigluForward,
      .swiglu_backward = simd::SwigluBackward,
      .embedding_forward = simd::EmbeddingForward,
      .embedding_backward = simd::EmbeddingBackward,
      .cross_entropy = simd::CrossEntropy,
      .dropout = simd::Dropout,
      .add = simd::Add,
      .column_sum = simd::ColumnSum,
      .column_sum_bf16 = simd::ColumnSumBf16,
      .sum_squares = simd::SumSquares,
      .adamw = simd::Adamw,
      .narrow = simd::Narrow,
  };
  return kTable;
}

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const int64_t target : Targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string SimdTarget() { return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()); }

void ForceSimdTarget(const std::string& target) {
  int64_t forced = 0;  // as Highway has it: no longer forced
  for (const int64_t known : Targets()) {
    if (hwy::TargetName(known) == target) forced = known;
  }
  hwy::SetSupportedTargetsForTest(forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace heed
