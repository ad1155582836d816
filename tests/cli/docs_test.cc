// Every command of the pages below docs/ runs as it stands there, on short texts and for a few
// updates.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "support/shell.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Pages() {
  std::vector<std::string> pages;
  for (const auto& entry : fs::recursive_directory_iterator(HEED_SOURCE_DIR "/docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path().string());
  }
  std::ranges::sort(pages);
  return pages;
}

// The command lines of its sh blocks.
std::vector<std::string> Commands(const std::string& page) {
  std::istringstream text(ReadText(page));
  std::vector<std::string> commands;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
    } else if (inside && line.starts_with("build/heed ")) {
      commands.push_back(line);
    }
  }
  return commands;
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
  for (const std::string& command : Commands(GetParam())) Run(command);
}

INSTANTIATE_TEST_SUITE_P(Pages, Docs, testing::ValuesIn(Pages()), [](const auto& page) {
  std::string name = fs::relative(page.param, HEED_SOURCE_DIR "/docs").replace_extension("");
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace heed
