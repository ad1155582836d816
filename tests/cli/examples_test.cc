// The experiments of examples/, for a few updates on a short text.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/shell.h"

namespace heed {
namespace {

class Examples : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "The fox: What? Once I said " + std::to_string(i) + "\n";
    WriteText(folder_ / "input.txt", text);
  }
  ShellResult Run(const std::string& settings, const std::string& script) {
    return Shell(folder_.path(), settings +
                                     " HEED=$heed ITERS=2 sh '" HEED_SOURCE_DIR "/examples/" +
                                     script + "' input.txt runs");
  }
  const TemporaryFolder folder_;
};

TEST_F(Examples, HomeworkOf07280) {
  const ShellResult result = Run("PRESET=pico", "homework_07280.sh");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/report.html"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/gpt/perplexity.svg"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/perplexity.svg"));
}

TEST_F(Examples, HomeworkOf10423) {
  const ShellResult result = Run("BATCH16=2 BATCH256=1 SECONDS_EACH=0.01", "homework_10423.sh");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* run : {"learned", "rope", "gqa", "both"}) {
    EXPECT_NE(result.out.find(std::string("  ") + run + "-256"), std::string::npos) << result.out;
  }
  EXPECT_NE(result.out.find("2,359,296"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 heads, decode"), std::string::npos) << result.out;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/report.html"));
}

}  // namespace
}  // namespace heed
