#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace heed {
namespace {

TEST(Parallel, EveryPieceRunsOnceForAnyTeam) {
  for (int threads : {1, 2, 3, 5}) {
    SetNumThreads(threads);
    EXPECT_EQ(NumThreads(), threads);
    for (int64_t pieces : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(pieces);
      ParallelFor(pieces, [&](int64_t piece) {
        runs[piece].fetch_add(1);
        EXPECT_LT(ThreadIndex(), threads);
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
  }
  SetNumThreads(HardwareThreads());
}

TEST(Parallel, ManyShortRunsLoseNoWakeUp) {
  SetNumThreads(4);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 3000; ++round) {
    ParallelFor(4, [&](int64_t piece) { sum.fetch_add(piece, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 3000 * 6);
  SetNumThreads(HardwareThreads());
}

TEST(Parallel, NestedCallsRunInline) {
  SetNumThreads(2);
  std::atomic<int> inner{0};
  ParallelFor(4, [&](int64_t) { ParallelFor(3, [&](int64_t) { inner.fetch_add(1); }); });
  EXPECT_EQ(inner.load(), 12);
  SetNumThreads(HardwareThreads());
}

}  // namespace
}  // namespace heed
