#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <csignal>

#include "cli/command.h"

namespace {

// Weights are read from the pages of their file: when another program cuts it short, reading on
// raises SIGBUS, and no result can be had.
void OnShortFile(int) {
  constexpr char kLine[] =
      "heed: a file was cut short while it was read, expected its bytes to stay; copy it first\n";
  // Several threads may meet the end at once; one tells of it and ends them all.
  static std::atomic_flag told;
  while (told.test_and_set()) pause();
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  // A standard stream that came closed must not lend its number to a file of ours.
  int fd = 0;
  while (fd >= 0 && fd <= 2) fd = open("/dev/null", O_RDWR);
  if (fd > 2) close(fd);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of write instead
  std::signal(SIGXFSZ, SIG_IGN);  // so is a limit on the size of files
  std::signal(SIGBUS, OnShortFile);
  std::setlocale(LC_CTYPE, "");
  const heed::Command commands[] = {
      heed::TrainCommand(),    heed::GenerateCommand(), heed::EvalCommand(),
      heed::PlotCommand(),     heed::CompareCommand(),  heed::ReportCommand(),
      heed::InfoCommand(),     heed::LedgerCommand(),   heed::CheckCommand(),
      heed::DiagnoseCommand(), heed::LessonCommand(),   heed::AttentionCommand(),
      heed::LogitsCommand(),   heed::TokenizeCommand(), heed::ConvertCommand(),
      heed::PullCommand(),     heed::BenchCommand(),
  };
  return heed::RunProgram(commands, argc > 0 ? argv[0] : "heed", {argv + (argc > 0), argv + argc});
}
