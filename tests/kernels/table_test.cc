#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "kernels/kernels.h"
#include "support/compare.h"

namespace heed {
namespace {

TEST(Kernels, EveryOperationIsInBothTables) {
  for (const Kernels* table : {&ReferenceKernels(), &SimdKernels()}) {
    SCOPED_TRACE(table->name);
    EXPECT_NE(table->matmul, nullptr);
    EXPECT_NE(table->norm_forward, nullptr);
    EXPECT_NE(table->norm_apply, nullptr);
    EXPECT_NE(table->norm_backward, nullptr);
    EXPECT_NE(table->rope, nullptr);
    EXPECT_NE(table->attention_forward, nullptr);
    EXPECT_NE(table->attention_backward, nullptr);
    EXPECT_NE(table->swiglu_forward, nullptr);
    EXPECT_NE(table->swiglu_backward, nullptr);
    EXPECT_NE(table->embedding_forward, nullptr);
    EXPECT_NE(table->embedding_backward, nullptr);
    EXPECT_NE(table->cross_entropy, nullptr);
    EXPECT_NE(table->dropout, nullptr);
    EXPECT_NE(table->add, nullptr);
    EXPECT_NE(table->column_sum, nullptr);
    EXPECT_NE(table->column_sum_bf16, nullptr);
    EXPECT_NE(table->sum_squares, nullptr);
    EXPECT_NE(table->adamw, nullptr);
  }
}

TEST(Kernels, ATargetCanBeForcedAndFreed) {
  const std::vector<std::string> targets = SimdTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(SimdTarget(), targets.front());
  for (const std::string& target : targets) {
    ForceSimdTarget(target);
    EXPECT_EQ(SimdTarget(), target);
    EXPECT_EQ(SimdTargets(), targets);
    const std::vector<float> x = {3, 4};
    EXPECT_EQ(SimdKernels().sum_squares(x.data(), 2), 25);
  }
  ForceSimdTarget("");
  EXPECT_EQ(SimdTarget(), targets.front());
}

}  // namespace
}  // namespace heed
