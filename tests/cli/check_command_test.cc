// heed check as scripts and people meet it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/shell.h"

namespace heed {
namespace {

constexpr const char* kPico = "$heed check --preset pico --block-size 32 ";

TEST(CheckCommand, AHealthyPresetEndsInZeroAndOneDocument) {
  const TemporaryFolder folder;
  const ShellResult result = Shell(folder.path(), std::string(kPico) + "--json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["verdict"], "ok");
  EXPECT_EQ(json["checks"][0]["name"], "shapes");
  for (const nlohmann::json& check : json["checks"]) {
    for (const char* key : {"name", "verdict", "value", "bound", "rules_out"}) {
      EXPECT_TRUE(check.contains(key)) << check;
    }
    EXPECT_EQ(check["value"].is_null(), check["verdict"] == "skipped") << check;
  }
}

TEST(CheckCommand, AFaultEndsInOneAndOnlyTheFirstIsExplained) {
  const TemporaryFolder folder;
  const std::string line = std::string(kPico) + "--plant mask_missing";
  const ShellResult text = Shell(folder.path(), line);
  EXPECT_EQ(text.exit_code, 1) << text.err;
  std::istringstream lines(text.out);
  std::string row, verdict;
  int explained = 0, failed = 0;
  while (std::getline(lines, row)) {
    EXPECT_LE(row.size(), 100) << row;
    explained += row.find("LOOK AT: ") != std::string::npos;
    if (row.starts_with("failed: ")) verdict = row;
    failed += row.starts_with("failed  ");
  }
  EXPECT_EQ(explained, 1);
  EXPECT_GT(failed, 1);
  EXPECT_TRUE(verdict.ends_with("; begin with pattern:")) << verdict;
  const nlohmann::json json = nlohmann::json::parse(Shell(folder.path(), line + " --json").out);
  EXPECT_EQ(json["verdict"], "failed");
}

TEST(CheckCommand, ReadsAFolder) {
  const TemporaryFolder folder;
  const ShellResult trained =
      Shell(folder.path(), "$heed train builtin:adder --preset pico --max-iters 2 --out run");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ShellResult result = Shell(folder.path(), "$heed check run --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  for (const nlohmann::json& check : json["checks"]) {
    if (check["name"] != "start_loss") continue;
    EXPECT_EQ(check["verdict"], "skipped");
  }
}

TEST(CheckCommand, WrongRequestsEndInTwo) {
  const TemporaryFolder folder;
  for (const char* line :
       {"$heed check", "$heed check nowhere", "$heed check a --preset pico", "$heed check a b",
        "$heed check --preset picoo", "$heed check --preset pico --plant mask_mising",
        "$heed check a --n-head 2", "$heed check --preset pico --block-size 1 --plant gqa_tiled"}) {
    const ShellResult result = Shell(folder.path(), line);
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace heed
