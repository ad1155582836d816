#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <clocale>
#include <csignal>
#include <string_view>

#include "base/mapped_file.h"
#include "cli/command.h"

namespace {

// Weights are read from the pages of their file: when another program cuts it short, reading on
// raises SIGBUS, and no result can be had.
void OnShortFile(int, siginfo_t* info, void*) {
  // Several threads may meet the end at once; one tells of it and ends them all.
  static std::atomic_flag told;
  while (told.test_and_set()) pause();
  const char* name = heed::MappedFileAt(info->si_addr);
  std::array<std::string_view, 4> parts = {"heed: ", name == nullptr ? "" : name,
                                           name == nullptr ? "a file" : ": the file",
                                           " was cut short while it was read, expected its bytes "
                                           "to stay; copy it first\n"};
  std::array<iovec, 4> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    pieces[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
  }
  [[maybe_unused]] const ssize_t written =
      writev(STDERR_FILENO, pieces.data(), static_cast<int>(pieces.size()));
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
  struct sigaction short_file = {};
  short_file.sa_sigaction = OnShortFile;
  short_file.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &short_file, nullptr);
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
