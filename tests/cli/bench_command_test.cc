// heed bench, and what training keeps.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/shell.h"

namespace heed {
namespace {

using nlohmann::json;

json Bench(const std::string& arguments) {
  const TemporaryFolder folder;
  const ShellResult result =
      Shell(folder.path(), "$heed bench --json --quiet --seconds 0.01 " + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false);
}

TEST(BenchCommand, RatesAreWorkByTime) {
  for (const std::string mode : {"train", "prefill", "decode", "attention"}) {
    const json document = Bench("--workload femto --mode " + mode);
    EXPECT_GT(document["ceilings"]["flops_per_s"], 0);
    EXPECT_GT(document["ceilings"]["bytes_per_s"], 0);
    const json& row = document["rows"][0];
    const double seconds = double(row["ms"]) * 1e-3;
    EXPECT_NEAR(double(row["flops_per_s"]) * seconds / double(row["flops"]), 1, 1e-9) << mode;
    EXPECT_NEAR(double(row["bytes_per_s"]) * seconds / double(row["bytes"]), 1, 1e-9) << mode;
  }
}

// Scores and weighted sums of 3 · 4 · 5 / 2 pairs (b, h, t, s <= t) and 2 channels, and twice that
// backward.
TEST(BenchCommand, AttentionCountsTheCausalHalf) {
  const json row =
      Bench("--mode attention --workload femto --batch-size 3 --block-size 4")["rows"][0];
  EXPECT_EQ(row["flops"], 3 * (2 * 2) * (3 * 4 * 5 / 2) * 2);
}

TEST(BenchCommand, RecomputingTakesLessMemory) {
  const std::string workload = "--workload char-small --n-layer 12 --threads 1 ";
  const json all = Bench(workload)["rows"][0];
  const json inputs = Bench(workload + "--recompute")["rows"][0];
  EXPECT_EQ(all["loss_first"], inputs["loss_first"]);
  EXPECT_LT(double(inputs["peak_rss_mib"]), 0.8 * double(all["peak_rss_mib"]));
}

TEST(BenchCommand, SizesThatCannotBeAreRefused) {
  const TemporaryFolder folder;
  for (const std::string wrong : {"--batch-size -1", "--n-head 7", "--block-size -4",
                                  "--mode attention --n-head 0 --n-embd -2", "--seconds 0"}) {
    const ShellResult result = Shell(folder.path(), "$heed bench --workload pico " + wrong);
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(Recompute, TrainsTheSameModel) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the fox and the hound, number " + std::to_string(i) + "\n";
  WriteText(folder / "text.txt", text);
  const std::string train =
      "$heed train text.txt --quiet --n-layer 3 --n-head 2 --n-embd 16 --block-size 16 "
      "--batch-size 4 --max-iters 5 --dropout 0.1 --eval-iters 1 --threads 1 ";
  ASSERT_EQ(Shell(folder.path(), train + "--out all").exit_code, 0);
  ASSERT_EQ(Shell(folder.path(), train + "--out inputs --recompute").exit_code, 0);
  EXPECT_EQ(Shell(folder.path(), "cmp all/model.safetensors inputs/model.safetensors").exit_code,
            0);
}

}  // namespace
}  // namespace heed
