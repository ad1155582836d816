#include "tensor/shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/dtype.h"

namespace heed {
namespace {

std::optional<int64_t> Count(const std::vector<int64_t>& shape) { return ElementCount(shape); }

TEST(Shape, CountsElements) {
  EXPECT_EQ(Count({}), 1);
  EXPECT_EQ(Count({7}), 7);
  EXPECT_EQ(Count({2, 3, 4}), 24);
  EXPECT_EQ(Count({2, 0, 4}), 0);
  EXPECT_EQ(Count({int64_t{1} << 31, int64_t{1} << 31}), int64_t{1} << 62);
}

TEST(Shape, RefusesWhatNoMemoryHolds) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_EQ(Count({big, big}), std::nullopt);
  EXPECT_EQ(Count({big, big, 0}), std::nullopt);
  EXPECT_EQ(Count({0, big, big}), std::nullopt);
  EXPECT_EQ(Count({3, -1}), std::nullopt);
}

TEST(Shape, Text) {
  EXPECT_EQ(ShapeText(std::vector<int64_t>{2, 3}), "[2, 3]");
  EXPECT_EQ(ShapeText({}), "[]");
}

TEST(DTypeNames, AreThoseOfSafetensors) {
  DType dtype = DType::kF32;
  EXPECT_TRUE(ValueOf("BF16", &dtype));
  EXPECT_EQ(dtype, DType::kBF16);
  EXPECT_EQ(NameOf(DType::kBool), "BOOL");
  EXPECT_FALSE(ValueOf("f32", &dtype));
  EXPECT_FALSE(ValueOf("F8_E4M3", &dtype));
}

}  // namespace
}  // namespace heed
