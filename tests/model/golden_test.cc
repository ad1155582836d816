// Whole models against float64: logits, loss, every gradient, and AdamW's trajectory.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace heed {
namespace {

using Case = std::tuple<const char*, bool>;  // golden file, reference kernels

class GoldenModels : public testing::TestWithParam<Case> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  const Kernels& kernels() const {
    return std::get<1>(GetParam()) ? ReferenceKernels() : SimdKernels();
  }
};

TEST_P(GoldenModels, Logits) {
  EXPECT_LT(GoldenLogitsError(name(), kernels()), kForwardBound);
  EXPECT_LT(GoldenLossError(name(), kernels()), kForwardBound);
}

TEST_P(GoldenModels, Gradients) {
  EXPECT_LT(GoldenGradientError(name(), kernels()), kGradientBound);
}

TEST_P(GoldenModels, AdamwTrajectory) {
  EXPECT_LT(GoldenTrajectoryError(name(), kernels()), kTrajectoryBound);
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + (std::get<1>(info.param) ? "_reference" : "_simd");
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenModels,
    testing::Combine(testing::Values("gpt2-femto", "gpt2-pico", "gpt2-learned", "gpt2-no-bias",
                                     "gpt2-rope-gqa", "gpt2-rope-interleaved-mqa",
                                     "gpt2-sinusoidal", "gpt2-no-position", "gpt2-ignored-targets",
                                     "llama-gqa", "llama-mqa-tied"),
                     testing::Bool()),
    CaseName);

}  // namespace
}  // namespace heed
