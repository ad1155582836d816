#include <fcntl.h>
#include <unistd.h>

#include <clocale>
#include <csignal>

#include "cli/command.h"

int main(int argc, char** argv) {
  // A standard stream that came closed must not lend its number to a file of ours.
  int fd = 0;
  while (fd >= 0 && fd <= 2) fd = open("/dev/null", O_RDWR);
  if (fd > 2) close(fd);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of write instead
  std::signal(SIGXFSZ, SIG_IGN);  // so is a limit on the size of files
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
