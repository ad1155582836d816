#include <hwy/targets.h>

#include "kernels/kernels.h"
#include "kernels/simd/adamw.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/cross_entropy.h"
#include "kernels/simd/dropout.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/embedding.h"
#include "kernels/simd/matmul.h"
#include "kernels/simd/norm.h"
#include "kernels/simd/rope.h"
#include "kernels/simd/swiglu.h"

namespace heed {

const Kernels& SimdKernels() {
  static const Kernels kernels = {
      "simd",
      simd::Matmul,
      simd::NormForward,
      simd::NormApply,
      simd::NormBackward,
      simd::Rope,
      simd::AttentionForward,
      simd::AttentionBackward,
      simd::SwigluForward,
      simd::SwigluBackward,
      simd::EmbeddingForward,
      simd::EmbeddingBackward,
      simd::CrossEntropy,
      simd::Dropout,
      simd::Add,
      simd::ColumnSum,
      simd::SumSquares,
      simd::Adamw,
  };
  return kernels;
}

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string SimdTarget() { return SimdTargets().front(); }

void ForceSimdTarget(const std::string& target) {
  hwy::SetSupportedTargetsForTest(0);
  for (const int64_t one : hwy::SupportedAndGeneratedTargets()) {
    if (hwy::TargetName(one) == target) hwy::SetSupportedTargetsForTest(one);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace heed
