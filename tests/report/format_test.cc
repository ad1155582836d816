#include "report/format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

TEST(Format, NumbersForPeople) {
  EXPECT_EQ(FormatCount(1115394), "1,115,394");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
  EXPECT_EQ(FormatQuantity(827), "827");
  EXPECT_EQ(FormatQuantity(12345), "12.3k");
  EXPECT_EQ(FormatQuantity(999600), "1.00M");
  EXPECT_EQ(FormatQuantity(0.5), "0.50");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(2359296), "2.25 MiB");
  EXPECT_EQ(FormatDuration(0.012), "12 ms");
  EXPECT_EQ(FormatDuration(4.24), "4.2 s");
  EXPECT_EQ(FormatDuration(59.96), "1:00");
  EXPECT_EQ(FormatDuration(7385), "2:03:05");
  EXPECT_EQ(FormatDuration(std::nan("")), "?");
  EXPECT_EQ(FormatFigure(4.17439), "4.174");
  EXPECT_EQ(FormatFigure(0.0003), "0.0003");
  EXPECT_EQ(FormatFigure(1.23e-7), "1.2e-07");
}

TEST(Format, TextWidthCountsCodePoints) { EXPECT_EQ(TextWidth("→😀x"), 3u); }

}  // namespace
}  // namespace heed
