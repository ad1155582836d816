// Every command of the README runs as it stands there, on a short text and for a few updates.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/doc_commands.h"

namespace heed {
namespace {

TEST(Readme, EveryCommandRuns) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "build");
  std::filesystem::create_symlink(HEED_PROGRAM, folder / "build/heed");
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "ROMEO: Once upon a time the fox said " + std::to_string(i) + ".\n";
  WriteText(folder / "input.txt", text);
  WriteText(folder / "other.txt", text.substr(0, 500));
  // What `make run` leaves.
  const ShellResult demo = Shell(folder.path(),
                                 "build/heed train builtin:stories --quiet --max-iters 4 --out "
                                 "runs/demo && build/heed plot --quiet runs/demo");
  ASSERT_EQ(demo.exit_code, 0) << demo.err;
  const std::vector<std::string> commands = DocCommands("README.md");
  EXPECT_GE(commands.size(), 5u);
  for (std::string command : commands) {
    const bool counts = command.find("--model ngram") != std::string::npos;
    if (command.find(" train ") != std::string::npos && !counts) {
      // The last value counts: a resumed run goes on for some updates more.
      command +=
          command.find("--resume") == std::string::npos ? " --max-iters 4" : " --max-iters 6";
    }
    const ShellResult result = Shell(folder.path(), command);
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.err;
  }
}

}  // namespace
}  // namespace heed
