#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/plural.h"
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

// What a built-in text holds out, for a model was trained on the rest.
Result<TextLoss> EvaluateBuiltin(LanguageModel model, const EvalSettings& settings,
                                 const std::vector<std::string>& sources,
                                 const EvaluationProgress& progress) {
  if (!settings.separator.empty()) {
    return BadRequest("--separator", "given beside a built-in text", "text files");
  }
  DataOptions options;
  options.sources = sources;
  if (model.gpt) options.block_size = model.gpt->config().block_size;
  HEED_ASSIGN(const DataSet data, OpenData(options, std::move(*model.tokenizer)));
  return EvaluateHeldOut(model, data, progress);
}

Result<TextLoss> EvaluateFiles(const LanguageModel& model, const EvalSettings& settings,
                               const std::vector<std::string>& sources,
                               const EvaluationProgress& progress) {
  HEED_ASSIGN(const Corpus corpus, Corpus::Open(sources));
  std::vector<PlacedText> texts;
  for (const Corpus::Part& part : corpus.parts()) {
    CutTexts(part.text, part.name, settings.separator, &texts);
  }
  return EvaluateTexts(model, texts, !settings.no_bos, progress);
}

Result<Verdict> Run(Session& session, const EvalSettings& settings,
                    const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    return BadRequest("MODEL TEXT...", arguments.empty() ? "nothing" : "a model's folder alone",
                      "a model's folder and at least one text");
  }
  HEED_ASSIGN(
      LanguageModel model,
      OpenModel(arguments[0], session.globals.reference ? ReferenceKernels() : SimdKernels(),
                WeightsOf(settings.dtype)));
  if (!model.tokenizer) return tl::make_unexpected(model.tokenizer.error());
  if (model.gpt) {
    SetArithmetic(settings.dtype, model.gpt.get());
    const std::string note = PrecisionNote(settings.dtype, *model.gpt);
    if (!note.empty()) session.terminal.Note(note);
  }
  const bool windowed = model.gpt != nullptr;
  const std::vector<std::string> sources(arguments.begin() + 1, arguments.end());
  const bool held_out = std::ranges::any_of(sources, IsBuiltin);
  std::optional<Progress> bar;
  const auto progress = [&](int64_t done, int64_t total) {
    if (!session.terminal.err_is_terminal()) return;
    if (!bar) bar.emplace(session.terminal, "evaluating", held_out ? "windows" : "bytes", total);
    bar->Update(done, {});
  };
  HEED_ASSIGN(const TextLoss loss,
              held_out ? EvaluateBuiltin(std::move(model), settings, sources, progress)
                       : EvaluateFiles(model, settings, sources, progress));
  bar.reset();
  const nlohmann::ordered_json json = {{"loss", loss.loss},
                                       {"perplexity", loss.perplexity},
                                       {"bits_per_byte", loss.bits_per_byte},
                                       {"tokens", loss.tokens},
                                       {"bytes", loss.bytes},
                                       {"stride", loss.stride}};
  HEED_TRY(session.terminal.Document(DocumentText(json)));
  std::string text = fmt::format(
      "loss {}  perplexity {}  bits per byte {}  over {} {}token{} of {}{}",
      FormatFigure(loss.loss), FormatFigure(loss.perplexity), FormatFigure(loss.bits_per_byte),
      FormatCount(loss.tokens), held_out ? "held-out " : "", Plural(loss.tokens),
      FormatBytes(static_cast<double>(loss.bytes)),
      windowed ? fmt::format(" in windows of {}", loss.stride) : "");
  HEED_TRY(session.terminal.Say(Wrap(text, session.terminal.text_width(), 0) + "\n"));
  // In a text of some length the first token is lost among the others.
  if (loss.unpredicted_bytes * 100 > loss.bytes) {
    session.terminal.Note(
        Wrap(fmt::format("note: a text's first token is not predicted, here {} of {} byte{}; bits "
                         "per byte count them as free, so it is too small",
                         FormatCount(loss.unpredicted_bytes), FormatCount(loss.bytes),
                         Plural(loss.bytes)),
             session.terminal.note_width(), 0));
  }
  return Verdict::kDone;
}

}  // namespace

Command EvalCommand() {
  Command command;
  command.name = "eval";
  command.summary = "loss, perplexity and bits per byte of a model on texts";
  command.explanation =
      "Reads whole texts, files and those below folders, in windows of the model's context that do "
      "not overlap; of builtin:stories and builtin:adder the part that training holds out. Loss is "
      "the mean negative log-likelihood per token in nats, perplexity its exponential. Bits per "
      "byte is the whole loss over all bytes, those of a text's first token among them, which is "
      "not predicted where the vocabulary has no start token. A run's own evaluations read "
      "--eval-iters batches of the held-out part, so their loss differs a little from that of all.";
  command.example =
      "heed eval runs/first held-out.txt\n"
      "heed eval runs/demo builtin:stories\n"
      "heed eval runs/first stories.txt --separator \"<|endoftext|>\" --json";
  command.takes_reference = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<EvalSettings>();
    auto arguments = std::make_shared<std::vector<std::string>>();
    options.BindArguments("MODEL TEXT...",
                          "a model (its folder, .gguf or .bin), then what train takes",
                          arguments.get());
    options.Bind("Evaluation", *settings);
    return [settings, arguments](Session& session) { return Run(session, *settings, *arguments); };
  };
  return command;
}

}  // namespace heed
