// Every command of the pages below docs/ runs as it stands there, on short texts and for a few
// updates.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/doc_commands.h"
#include "support/shell.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Pages() {
  std::vector<std::string> pages;
  for (const auto& entry : fs::recursive_directory_iterator(HEED_SOURCE_DIR "/docs")) {
    const std::string page = fs::relative(entry.path(), HEED_SOURCE_DIR);
    // These bring files of their own and are run beside their commands' tests.
    const bool elsewhere =
        page == "docs/diagnose.md" || page == "docs/formats.md" || page == "docs/tokenizers.md";
    if (entry.path().extension() == ".md" && !elsewhere) pages.push_back(page);
  }
  std::ranges::sort(pages);
  return pages;
}

// Lesson rows 1 to 30 have a page each, and tests that bear the row's name.
TEST(LessonPages, EveryRowHasAPageThatNamesItsTests) {
  std::string tests;
  for (const auto& entry : fs::recursive_directory_iterator(HEED_SOURCE_DIR "/tests")) {
    if (entry.path().extension() == ".cc") tests += ReadText(entry.path());
  }
  int row = 0;
  for (const std::string& page : Pages()) {
    if (!page.starts_with("docs/lessons/")) continue;
    ++row;
    const std::string number = (row < 10 ? "0" : "") + std::to_string(row);
    EXPECT_TRUE(page.starts_with("docs/lessons/" + number + "-")) << page;
    const std::string suite = "LessonRow" + number;
    EXPECT_NE(ReadText(HEED_SOURCE_DIR "/" + page).find("`" + suite + "."), std::string::npos)
        << page;
    EXPECT_NE(tests.find("(" + suite + ", "), std::string::npos) << suite;
  }
  EXPECT_EQ(row, 30);
}

class Docs : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ / "build");
    fs::create_symlink(HEED_PROGRAM, folder_ / "build/heed");
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the fox said: a " + std::to_string(i) + "\n";
    WriteText(folder_ / "input.txt", text);
    WriteText(folder_ / "other.txt", text.substr(0, 500));
    Run("build/heed train input.txt --n-layer 2 --n-head 2 --n-embd 16 --block-size 16 "
        "--out runs/first");
  }

  void Run(std::string command) {
    const bool counts = command.find("--model ngram") != std::string::npos;
    if (command.find(" train ") != std::string::npos && !counts) {
      command += " --max-iters 4 --threads 1";
    }
    // A planted fault is to be found.
    const int want = command.find("--plant") != std::string::npos ? 1 : 0;
    const ShellResult result = Shell(folder_.path(), command);
    EXPECT_EQ(result.exit_code, want) << command << "\n" << result.err;
  }

  const TemporaryFolder folder_;
};

TEST_P(Docs, EveryCommandRuns) {
  for (const std::string& command : DocCommands(GetParam())) Run(command);
}

INSTANTIATE_TEST_SUITE_P(Pages, Docs, testing::ValuesIn(Pages()), [](const auto& page) {
  std::string name = fs::relative(page.param, "docs").replace_extension("");
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace heed
