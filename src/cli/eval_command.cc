#include <fmt/format.h>

#include <memory>

#include "base/mapped_file.h"
#include "baseline/open.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/precision.h"
#include "data/dataset.h"
#include "eval/perplexity.h"
#include "report/format.h"

namespace heed {
namespace {

struct EvalSettings {
  std::string separator;
  bool no_bos = false;
  Precision dtype = Precision::kF32;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("separator", self.separator, "cuts a file into texts that see nothing of one another");
    visit("no_bos", self.no_bos, "leave the vocabulary's start token out");
    visit("dtype", self.dtype, kPrecisionHelp);
  }
};

void CutTexts(std::string_view text, const std::string& name, const std::string& separator,
              std::vector<PlacedText>* texts) {
  if (separator.empty()) {
    texts->push_back({text, {name}});
    return;
  }
  for (size_t at = 0;;) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) texts->push_back({text.substr(at, end - at), {name, at}});
    if (end == text.size()) return;
    at = end + separator.size();
  }
}

Result<Verdict> Run(Session& session, const EvalSettings& settings,
                    const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    return BadRequest("MODEL TEXT...", arguments.empty() ? "nothing" : "a model's folder alone",
                      "a model's folder and at least one text file");
  }
  HEED_ASSIGN(
      const LanguageModel model,
      OpenModel(arguments[0], session.globals.reference ? ReferenceKernels() : SimdKernels(),
                WeightsOf(settings.dtype)));
  if (!model.tokenizer) return tl::make_unexpected(model.tokenizer.error());
  if (model.gpt) {
    SetArithmetic(settings.dtype, model.gpt.get());
    const std::string note = PrecisionNote(settings.dtype, *model.gpt);
    if (!note.empty()) session.terminal.Note(note);
  }
  std::vector<MappedFile> files;
  std::vector<PlacedText> texts;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (IsBuiltin(arguments[i])) {
      return BadRequest(arguments[i], "a task", "a text file",
                        "a task's held-out loss is in its run's folder, metrics.jsonl");
    }
    HEED_ASSIGN(MappedFile file, MappedFile::Open(arguments[i]));
    files.push_back(std::move(file));
    CutTexts(files.back().text(), arguments[i], settings.separator, &texts);
  }
  HEED_ASSIGN(const TextLoss loss, EvaluateTexts(model, texts, !settings.no_bos));
  const nlohmann::ordered_json json = {{"loss", loss.loss},
                                       {"perplexity", loss.perplexity},
                                       {"bits_per_byte", loss.bits_per_byte},
                                       {"tokens", loss.tokens},
                                       {"bytes", loss.bytes},
                                       {"stride", loss.stride}};
  HEED_TRY(session.terminal.Document(DocumentText(json)));
  const std::string text = fmt::format(
      "loss {}  perplexity {}  bits per byte {}  over {} tokens of {} in windows of {}",
      FormatFigure(loss.loss), FormatFigure(loss.perplexity), FormatFigure(loss.bits_per_byte),
      FormatCount(loss.tokens), FormatBytes(static_cast<double>(loss.bytes)), loss.stride);
  HEED_TRY(session.terminal.Say(Wrap(text, session.terminal.text_width(), 0) + "\n"));
  return Verdict::kDone;
}

}  // namespace

Command EvalCommand() {
  Command command;
  command.name = "eval";
  command.summary = "loss, perplexity and bits per byte of a model on texts";
  command.explanation =
      "Reads the whole text in windows of the model's context that do not overlap. Loss is the "
      "mean "
      "negative log-likelihood per token in nats, perplexity its exponential.";
  command.example =
      "heed eval runs/first held-out.txt\n"
      "heed eval runs/first stories.txt --separator \"<|endoftext|>\" --json";
  command.takes_reference = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<EvalSettings>();
    auto arguments = std::make_shared<std::vector<std::string>>();
    options.BindArguments("MODEL TEXT...", "a model (its folder, .gguf or .bin), then text files",
                          arguments.get());
    options.Bind("Evaluation", *settings);
    return [settings, arguments](Session& session) { return Run(session, *settings, *arguments); };
  };
  return command;
}

}  // namespace heed
