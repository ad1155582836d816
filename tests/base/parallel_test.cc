#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <vector>

#include "support/shell.h"

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

// https://docs.kernel.org/admin-guide/cgroup-v2.html, "cpu.max"; cgroup-v1's in
// scheduler/sched-bwc.
TEST(Parallel, AContainerSharesOfTimeCount) {
  const TemporaryFolder folder;
  const auto granted = [&](const std::string& name, const std::string& text) {
    WriteText(folder / name, text);
    return GrantedProcessors(folder.path());
  };
  EXPECT_EQ(GrantedProcessors(folder.path()), 0);
  EXPECT_EQ(granted("cpu.max", "max 100000\n"), 0);
  EXPECT_EQ(granted("cpu.max", "200000 100000\n"), 2);
  EXPECT_EQ(granted("cpu.max", "150000 100000\n"), 2);
  EXPECT_EQ(granted("cpu.max", "5000 100000\n"), 1);
  EXPECT_EQ(granted("cpu.max", "0 100000\n"), 0);
  EXPECT_EQ(granted("cpu.max", "400000 50000\n"), 8);
  std::filesystem::remove(folder / "cpu.max");
  std::filesystem::create_directory(folder / "cpu");
  EXPECT_EQ(granted("cpu/cpu.cfs_period_us", "100000\n"), 0);
  EXPECT_EQ(granted("cpu/cpu.cfs_quota_us", "-1\n"), 0);
  EXPECT_EQ(granted("cpu/cpu.cfs_quota_us", "250000\n"), 3);
}

}  // namespace
}  // namespace heed
