// A command of the program: what it is called, what it takes, what it does.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace heed {

// The options of every command; --reference and --overwrite only where they mean something.
struct GlobalOptions {
  bool json = false;
  bool quiet = false;
  int64_t threads = 0;  // 0: all cores
  int64_t seed = 1337;
  bool reference = false;
  bool overwrite = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("json", self.json, "print one JSON document and nothing else");
    visit("quiet", self.quiet, "no progress and no notes");
    visit("threads", self.threads, "1 to 1024; all cores when not given");
    visit("seed", self.seed, "of every random number, 0 or more");
    visit("reference", self.reference, "use the plain readable kernels, not the fast ones");
    visit("overwrite", self.overwrite, "replace outputs that exist");
  }
};

// What a command has at hand while it runs.
struct Session {
  std::string_view program;  // as the user called it, for lines to be copied
  const GlobalOptions& globals;
  Options& options;  // what was given; Apply() after a preset
  Terminal& terminal;
};

// How a command that could run ended: the exit codes 0 and 1. An error is exit code 2.
enum class Verdict { kDone = 0, kNegative = 1 };

using CommandBody = std::function<Result<Verdict>(Session&)>;

struct Command {
  std::string_view name;
  std::string_view summary;         // one line, for `heed --help`
  std::string_view explanation;     // sentences, for the command's own help
  std::string (*more)() = nullptr;  // its last sentence, where making it takes time
  std::string_view example;         // command lines, for the same
  bool takes_reference = false;
  bool takes_overwrite = false;
  // Binds the command's settings to options and returns what runs once they are read; the body
  // owns the settings.
  std::function<CommandBody(Options&)> declare;
};

std::string HelpText(const Command& command, const Options& options, size_t width);

// Runs the program: `program` as it was called, `arguments` without it. Returns the exit code.
int RunProgram(std::span<const Command> commands, std::string_view program,
               const std::vector<std::string>& arguments);

// The commands there are, one file each.
Command AttentionCommand();
Command BenchCommand();
Command CheckCommand();
Command CompareCommand();
Command ConvertCommand();
Command DiagnoseCommand();
Command EvalCommand();
Command GenerateCommand();
Command InfoCommand();
Command LedgerCommand();
Command LessonCommand();
Command LogitsCommand();
Command PlotCommand();
Command PullCommand();
Command ReportCommand();
Command TokenizeCommand();
Command TrainCommand();

}  // namespace heed
