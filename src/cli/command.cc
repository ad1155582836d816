#include "cli/command.h"

#include <new>

#include "base/parallel.h"
#include "report/format.h"

namespace heed {
namespace {

constexpr int kRequestWrong = 2;
constexpr int64_t kMostThreads = 1024;

std::string ProgramHelp(std::span<const Command> commands, size_t width) {
  size_t widest = 0;
  for (const Command& command : commands) widest = std::max(widest, command.name.size());
  std::string text =
      Wrap("heed trains, runs, inspects and proves GPTs on the processor you have.", width, 0) +
      "\n\nUsage: heed COMMAND [options]\n\nCommands:\n";
  const size_t indent = widest + 4;
  for (const Command& command : commands) {
    text += "  " + std::string(command.name) + std::string(widest + 2 - command.name.size(), ' ') +
            Wrap(command.summary, width - indent, indent) + "\n";
  }
  return text + "\n" +
         Wrap(
             "heed COMMAND --help explains a command, with an example. heed --version tells the "
             "version.",
             width, 0) +
         "\n";
}

Status CheckGlobals(const Options& options, const GlobalOptions& globals) {
  if (options.Given("threads") && (globals.threads < 1 || globals.threads > kMostThreads)) {
    return BadRequest("--threads", std::to_string(globals.threads), "1 to 1024");
  }
  if (globals.seed < 0) {
    return BadRequest("--seed", std::to_string(globals.seed), "0 or more");
  }
  return {};
}

Result<Verdict> RunCommand(const Command& command, std::string_view program,
                           const std::vector<std::string>& arguments, Terminal& terminal) {
  Options options;
  GlobalOptions globals;
  const CommandBody body = command.declare(options);
  std::vector<std::string_view> everywhere = {"json", "quiet", "threads", "seed"};
  if (command.takes_reference) everywhere.emplace_back("reference");
  if (command.takes_overwrite) everywhere.emplace_back("overwrite");
  options.Bind("Everywhere", globals, everywhere);
  HEED_TRY(options.Parse(arguments));
  if (options.help_asked()) {
    HEED_TRY(terminal.Say(HelpText(command, options, terminal.text_width())));
    return Verdict::kDone;
  }
  HEED_TRY(CheckGlobals(options, globals));
  if (options.Given("threads")) SetNumThreads(static_cast<int>(globals.threads));
  terminal = Terminal({.quiet = globals.quiet, .json = globals.json});
  Session session{program, globals, options, terminal};
  return body(session);
}

Result<Verdict> Run(std::span<const Command> commands, std::string_view program,
                    const std::vector<std::string>& arguments, Terminal& terminal) {
  const std::string name = arguments.empty() ? "--help" : arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    HEED_TRY(terminal.Say(ProgramHelp(commands, terminal.text_width())));
    return Verdict::kDone;
  }
  if (name == "--version") {
    HEED_TRY(terminal.Say("heed " HEED_VERSION "\n"));
    return Verdict::kDone;
  }
  std::vector<std::string> known;
  for (const Command& command : commands) {
    if (command.name == name) {
      return RunCommand(command, program, {arguments.begin() + 1, arguments.end()}, terminal);
    }
    known.emplace_back(command.name);
  }
  const std::string nearest = NearestName(name, known);
  return BadRequest(name.empty() ? "''" : name, "unknown command", "a command",
                    nearest.empty() ? "see heed --help" : "did you mean heed " + nearest + "?");
}

// Words of a command line; blanks inside double quotes are part of a word.
std::vector<std::string> CommandWords(std::string_view line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// A command line fit to be copied: lines but the last end in a backslash.
std::string WrapCommand(std::string_view line, size_t width) {
  std::string text = " ";
  size_t used = text.size();
  for (const std::string& word : CommandWords(line)) {
    constexpr size_t kBackslash = 2;
    if (used > 1 && used + 1 + TextWidth(word) + kBackslash > width) {
      text += " \\\n   ";
      used = 3;
    }
    text += " " + word;
    used += 1 + TextWidth(word);
  }
  return text;
}

}  // namespace

std::string HelpText(const Command& command, const Options& options, size_t width) {
  const std::string name(command.name);
  std::string explanation(command.explanation);
  if (command.more != nullptr) explanation += " " + command.more();
  std::string text = Wrap("heed " + name + ": " + std::string(command.summary), width, 0) + "\n\n" +
                     Wrap("Usage: heed " + name + " " + options.Usage(), width, 2) + "\n\n" +
                     Wrap(explanation, width, 0) + "\n\nExample:\n";
  for (std::string_view rest = command.example; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    text += WrapCommand(rest.substr(0, end), width) + "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text + "\n" + options.List(width);
}

int RunProgram(std::span<const Command> commands, std::string_view program,
               const std::vector<std::string>& arguments) {
  Terminal terminal;
  Result<Verdict> result = Verdict::kDone;
  try {
    result = Run(commands, program, arguments, terminal);
  } catch (const std::bad_alloc&) {
    result = Fail(ErrorKind::kIo, "memory", "not enough of it", "",
                  "take a smaller model, batch or context");
  } catch (const std::exception& error) {
    result = Fail(ErrorKind::kIo, "internal", error.what(), "", "please report this");
  }
  if (result) return static_cast<int>(*result);
  terminal.Complain(result.error());
  // Numbers that stop being finite are a verdict on the work, not on the request.
  return result.error().kind == ErrorKind::kNumeric ? static_cast<int>(Verdict::kNegative)
                                                    : kRequestWrong;
}

}  // namespace heed
