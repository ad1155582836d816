#include "base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace heed {
namespace {

TEST(Nearest, FindsSlipsAndLeavesStrangersAlone) {
  const std::vector<std::string> known = {"n-layer", "n-head", "learning-rate", "top-k", "top-p"};
  EXPECT_EQ(NearestName("n-laier", known), "n-layer");
  EXPECT_EQ(NearestName("n_haed", known), "n-head");
  EXPECT_EQ(NearestName("learning_rate", known), "learning-rate");
  EXPECT_EQ(NearestName("tpo-k", known), "top-k");
  EXPECT_EQ(NearestName("learn", known), "learning-rate");  // begun, not finished
  EXPECT_EQ(NearestName("zebra", known), "");
  EXPECT_EQ(NearestName("", known), "");
  EXPECT_EQ(NearestName(std::string(100000, 'a'), known), "");
}

}  // namespace
}  // namespace heed
