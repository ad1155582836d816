#include "tensor/plan.h"

#include <gtest/gtest.h>

namespace heed {
namespace {

// A tensor in bfloat16 takes half the memory, and shares it with those of its key.
TEST(Plan, HoldsBf16) {
  Plan plan(Keep::kAll, /*rounds=*/true);
  EXPECT_TRUE(plan.rounds());
  EXPECT_FALSE(Plan(Keep::kAll).rounds());
  float *floats = nullptr, *shared = nullptr;
  uint16_t *kept = nullptr, *small = nullptr;
  plan.Add(&floats, "floats", "a", "B T", {2, 33}, Lifetime::kSaved);
  plan.Add(&kept, "kept", "a", "B T", {2, 33}, Lifetime::kSaved);
  plan.Add(&shared, "shared", "b", "B", {40}, Lifetime::kScratch);
  plan.Add(&small, "small", "b", "B", {100}, Lifetime::kScratch);
  // In floats, each block a multiple of 16 of them: 66, 66 / 2, and the larger of 40 and 100 / 2.
  EXPECT_EQ(plan.bytes(), (80 + 48 + 64) * sizeof(float));
  EXPECT_EQ(plan.data(1), nullptr);
  ASSERT_TRUE(plan.Allocate());
  EXPECT_EQ(reinterpret_cast<float *>(kept), floats + 80);
  EXPECT_EQ(reinterpret_cast<float *>(small), floats + 128);
  EXPECT_EQ(shared, floats + 128);
  EXPECT_EQ(plan.data(1), floats + 80);
  EXPECT_EQ(plan.tensors()[0].dtype, DType::kF32);
  EXPECT_EQ(plan.tensors()[0].bytes(), 66 * 4u);
  EXPECT_EQ(plan.tensors()[1].dtype, DType::kBF16);
  EXPECT_EQ(plan.tensors()[1].bytes(), 66 * 2u);
}

}  // namespace
}  // namespace heed
