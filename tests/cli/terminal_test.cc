#include "cli/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "report/format.h"
#include "support/shell.h"

namespace heed {
namespace {

using std::chrono::milliseconds;

ProgressState Half() {
  return {.label = "training",
          .unit = "it",
          .done = 500,
          .total = 1000,
          .rate = 100,
          .elapsed_s = 5,
          .figures = {{"loss", "2.413"}}};
}

TEST(Terminal, ABarFitsAnyWidth) {
  EXPECT_EQ(BarLine(Half(), 100, false),
            "training  50% ####################....................  500/1,000  5.0 s left  "
            "loss 2.413  100 it/s");
  for (int width = 0; width <= 120; ++width) {
    for (const bool utf8 : {false, true}) {
      EXPECT_LE(TextWidth(BarLine(Half(), width, utf8)), static_cast<size_t>(width));
    }
  }
  // What is dropped first: the rate, then figures, then the time left.
  EXPECT_EQ(BarLine(Half(), 60, false).find("it/s"), std::string::npos);
  EXPECT_NE(BarLine(Half(), 60, false).find("loss 2.413"), std::string::npos);
}

TEST(Terminal, APlainLineSaysTheSame) {
  EXPECT_EQ(PlainLine(Half()), "training: 500/1,000 (50%), 5.0 s left, loss 2.413, 100 it/s");
}

// Runs a loop of 1000 steps of a millisecond each by a clock of its own.
std::string Watch(int fd, int reader, bool quiet) {
  Terminal terminal({.out = fd, .err = fd, .quiet = quiet});
  Progress::Clock::time_point now{};
  Progress progress(terminal, "training", "it", 1000);
  progress.StartAt(0, now);
  for (int i = 1; i <= 1000; ++i) {
    now += milliseconds(1);
    progress.Update(i, {{"loss", "2"}}, now);
  }
  progress.Finish(now);
  // A pseudo-terminal hands its bytes over in pieces, and some time after they were written.
  std::string text;
  struct pollfd ready = {reader, POLLIN, 0};
  while (poll(&ready, 1, /*milliseconds=*/500) > 0 && (ready.revents & POLLIN) != 0) {
    char piece[4096];
    const ssize_t size = read(reader, piece, sizeof(piece));
    if (size <= 0) break;
    text.append(piece, static_cast<size_t>(size));
  }
  return text;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST(Terminal, ABarOnATerminalIsRedrawnTenTimesASecond) {
  int master = -1, slave = -1;
  struct winsize size = {24, 80, 0, 0};
  if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) {
    GTEST_SKIP() << "this system has no pseudo-terminals";
  }
  const std::string text = Watch(slave, master, false);
  close(slave);
  close(master);
  // At 1, 101, 201, ... 901 ms, and the last one cleanly ended by a line break.
  EXPECT_EQ(Count(text, "\r\x1b[2K"), 11u);
  EXPECT_EQ(Count(text, "\n"), 1u);
  EXPECT_TRUE(text.ends_with("1,000/1,000  in 1.0 s  loss 2  1.00k it/s\r\n")) << text;
}

TEST(Terminal, StepsOfUnlikeTimesPromiseNone) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  Terminal terminal({.out = pipes[1], .err = pipes[1]});
  Progress::Clock::time_point now{};
  Progress progress(terminal, "checking", "", 4);
  progress.StartAt(0, now);
  progress.Update(2, {{"now", "batch"}}, now + std::chrono::seconds(3));
  close(pipes[1]);
  char text[200];
  const ssize_t size = read(pipes[0], text, sizeof(text));
  close(pipes[0]);
  EXPECT_EQ(std::string(text, size), "checking: 2/4 (50%), now batch\n");
}

TEST(Terminal, PlainLinesElsewhereAndNothingWhenQuiet) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = Watch(ends[1], ends[0], false);
  // One at the first step, one every twentieth, the last one from Finish.
  EXPECT_EQ(Count(text, "\n"), 21u) << text;
  EXPECT_EQ(Count(text, "\x1b"), 0u);
  EXPECT_NE(text.find("training: 500/1,000 (50%), 500 ms left, loss 2, 1.00k it/s\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(Watch(ends[1], ends[0], true), "");
  close(ends[0]);
  close(ends[1]);
}

TEST(Terminal, ResumedWorkDoesNotCountInTheRate) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Terminal terminal({.out = ends[1], .err = ends[1]});
  Progress::Clock::time_point now{};
  Progress progress(terminal, "training", "it", 1000);
  progress.StartAt(900, now);
  progress.Update(910, {}, now + std::chrono::seconds(1));
  char text[200] = {};
  ASSERT_GT(read(ends[0], text, sizeof(text) - 1), 0);
  EXPECT_STREQ(text, "training: 910/1,000 (91%), 9.0 s left, 10 it/s\n");
  close(ends[0]);
  close(ends[1]);
}

TEST(Terminal, JsonKeepsStdoutForTheDocument) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Terminal terminal({.out = ends[1], .err = -1, .json = true});
  EXPECT_TRUE(terminal.Say("for people\n"));
  EXPECT_TRUE(terminal.Document("{}"));
  char text[100] = {};
  ASSERT_GT(read(ends[0], text, sizeof(text) - 1), 0);
  EXPECT_STREQ(text, "{}\n");
  close(ends[0]);
  close(ends[1]);
}

TEST(Terminal, TextTakesTheColumnsOfItsTerminalFrom40To100) {
  setenv("TERM", "xterm", 1);
  for (const auto& [columns, want] :
       {std::pair{80, 80}, {120, 100}, {50, 50}, {30, 40}, {0, 100}}) {
    int master = -1, slave = -1;
    const winsize size = {.ws_row = 24, .ws_col = static_cast<uint16_t>(columns)};
    ASSERT_EQ(openpty(&master, &slave, nullptr, nullptr, &size), 0);
    EXPECT_EQ(Terminal({.out = slave}).text_width(), static_cast<size_t>(want));
    close(master);
    close(slave);
  }
  const TemporaryFolder folder;
  const int file = open((folder / "out").c_str(), O_CREAT | O_WRONLY, 0600);
  EXPECT_EQ(Terminal({.out = file}).text_width(), 100u);
  close(file);
}

}  // namespace
}  // namespace heed
