#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace heed {
namespace {

using testing::HasSubstr;

ProcessResult Sh(const std::string& line, double timeout_s = 0, const std::string& input = "") {
  auto result =
      RunProcess({.arguments = {"sh", "-c", line}, .input = input, .timeout_s = timeout_s});
  EXPECT_TRUE(result.has_value());
  return result.value_or(ProcessResult());
}

TEST(Process, PassesInputOutputAndExitCode) {
  const ProcessResult result = Sh("cat; echo oh >&2; exit 7", 0, "words");
  EXPECT_EQ(result.out, "words");
  EXPECT_EQ(result.err, "oh\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_FALSE(result.Succeeded());
  EXPECT_TRUE(Sh("true").Succeeded());
}

TEST(Process, TellsSignalsAndTimeOutsApart) {
  EXPECT_EQ(Sh("kill -SEGV $$").signal, SIGSEGV);
  EXPECT_FALSE(Sh("kill -SEGV $$", 60).timed_out);
  EXPECT_TRUE(Sh("sleep 60", 0.2).timed_out);
}

TEST(Process, EndsWhatIsLeftInTheGroup) {
  // The child is a zombie until somebody waits for it, or gone.
  const ProcessResult result = Sh("sleep 60 >/dev/null 2>&1 & echo $!");
  const pid_t child = static_cast<pid_t>(std::stoi(result.out));
  const ProcessResult state = Sh("grep State /proc/" + std::to_string(child) + "/status");
  EXPECT_THAT(state.out, testing::Not(HasSubstr("sleeping")));
}

TEST(Process, EndsOneThatFloods) {
  const ProcessResult result = Sh("yes", 60);
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_FALSE(result.timed_out);
}

TEST(Process, AMissingProgramAndAStopAreErrors) {
  const auto missing = RunProcess({.arguments = {"no-such-program-anywhere"}});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().kind, ErrorKind::kIo);
  const std::atomic<bool> stop{true};
  const auto stopped = RunProcess({.arguments = {"sleep", "60"}, .stop = &stop});
  ASSERT_FALSE(stopped.has_value());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kInterrupted);
}

}  // namespace
}  // namespace heed
