#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/json.h"
#include "io/file.h"
#include "report/format.h"
#include "report/report.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

struct ReportSettings {
  std::string out;
  std::vector<std::string> prompt;
  std::vector<double> temperature = ReportRequest().temperatures;
  int64_t max_tokens = ReportRequest().max_tokens;
  std::string text;
  bool ablate = true;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("out", self.out, "page to write, FILE.html; the first run's report.html if not given");
    visit("prompt", self.prompt, "text to continue; the run's own sample prompt if not given");
    visit("temperature", self.temperature, "0 is greedy");
    visit("max_tokens", self.max_tokens, "tokens of a continuation");
    visit("text", self.text, "text to draw attention on; the first sample if not given");
    visit("ablate", self.ablate, "measure the held-out loss without each head");
  }
};

constexpr const char* kEndings[] = {".html", ".md", ".csv"};

Result<Verdict> Run(Session& session, const ReportSettings& settings,
                    const std::vector<std::string>& folders) {
  if (folders.empty()) return BadRequest("RUN...", "no folder", "the folder of a run");
  constexpr int64_t kMostTokens = 100000;
  if (settings.max_tokens < 1 || settings.max_tokens > kMostTokens) {
    return BadRequest("--max-tokens", fmt::format("{}", settings.max_tokens),
                      fmt::format("1 to {}", kMostTokens));
  }
  fs::path page = settings.out;
  if (page.empty()) page = fs::path(folders[0]) / "report.html";
  if (page.extension() != ".html") {
    return BadRequest("--out", settings.out, "a name that ends in .html");
  }
  for (const char* ending : kEndings) {
    HEED_TRY(CheckNothingAt(page.replace_extension(ending).string(), session.globals.overwrite));
  }
  ReportRequest request{settings.prompt,     settings.temperature,
                        settings.max_tokens, settings.text,
                        settings.ablate,     static_cast<uint64_t>(session.globals.seed)};
  std::vector<ReportedRun> runs;
  for (const std::string& folder : folders) {
    HEED_ASSIGN(ReportedRun run, ReportRun(folder, request, [&](const std::string& step) {
                  session.terminal.Note(step);
                }));
    runs.push_back(std::move(run));
  }
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  std::string text;
  const std::string contents[] = {ReportHtml(runs), ReportMarkdown(runs), ReportCsv(runs)};
  for (size_t i = 0; i < std::size(contents); ++i) {
    const std::string path = page.replace_extension(kEndings[i]).string();
    const std::string_view piece = contents[i];
    HEED_TRY(WriteFileAtomically(path, {&piece, 1}, session.globals.overwrite));
    files.push_back(path);
    text += fmt::format("{:>9}  {}\n", FormatBytes(static_cast<double>(piece.size())), path);
  }
  HEED_TRY(session.terminal.Document(DocumentText({{"files", files}})));
  HEED_TRY(session.terminal.Say(text));
  return Verdict::kDone;
}

}  // namespace

Command ReportCommand() {
  Command command;
  command.name = "report";
  command.summary = "one page about runs: curves, samples, shapes, memory, attention";
  command.explanation =
      "Writes one HTML file that needs nothing else, and its tables as Markdown and CSV beside it: "
      "curves of loss and perplexity (training, held out, floor), every prompt at every "
      "temperature with entropy, distinct words and repetition, settings, tensors of a pass, "
      "memory by formula and as measured, and the maps of all heads beside what the held-out loss "
      "becomes without each.";
  command.example =
      "heed report runs/demo\n"
      "heed report runs/learned runs/rope --prompt \"ROMEO:\" --out comparison.html";
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<ReportSettings>();
    auto folders = std::make_shared<std::vector<std::string>>();
    options.BindArguments("RUN...", "folders of runs", folders.get());
    options.Bind("Report", *settings);
    return [settings, folders](Session& session) { return Run(session, *settings, *folders); };
  };
  return command;
}

}  // namespace heed
