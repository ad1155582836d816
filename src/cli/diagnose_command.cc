#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/plural.h"
#include "base/quote.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "inspect/attention_settings.h"
#include "report/format.h"
#include "tensor/shape.h"
#include "verify/diagnose/catalogue.h"
#include "verify/diagnose/live_attention.h"

namespace heed {
namespace {

// Settings that heed attention does not know. Texts, for only what is given counts.
struct OtherSettings {
  std::string kind, alibi, qk_norm, qk_layernorm, model, norm_position, embedding_multiplier,
      logit_scale, norm_eps, mlp, temperature, top_k, top_p, min_p, repetition_penalty,
      learning_rate, beta1, beta2, eps, weight_decay, step, grad_clip;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("kind", self.kind,
          "attention (default), layernorm, rmsnorm, mlp, model, loss, sampler or optimizer");
    visit("alibi", self.alibi, "attention: true where scores have slopes (ALiBi)");
    visit("qk_norm", self.qk_norm, "attention: norm of q and k, none, before_rope or after_rope");
    visit("qk_layernorm", self.qk_layernorm,
          "attention: true where that norm is a LayerNorm, false where it is an RMS norm");
    visit("model", self.model, "model: the folder of the model whose logits were saved");
    visit("norm_position", self.norm_position,
          "model: pre when not given, or post, the norm behind the sum");
    visit("embedding_multiplier", self.embedding_multiplier,
          "model: factor of the token's embedding, 1 when not given");
    visit("logit_scale", self.logit_scale, "model: factor of the logits, 1 when not given");
    visit("norm_eps", self.norm_eps, "layernorm, rmsnorm, qk_norm: added to the variance");
    visit("mlp", self.mlp, "mlp: gelu or swiglu");
    visit("temperature", self.temperature, "sampler");
    visit("top_k", self.top_k, "sampler");
    visit("top_p", self.top_p, "sampler");
    visit("min_p", self.min_p, "sampler");
    visit("repetition_penalty", self.repetition_penalty, "sampler");
    visit("learning_rate", self.learning_rate, "optimizer");
    visit("beta1", self.beta1, "optimizer");
    visit("beta2", self.beta2, "optimizer");
    visit("eps", self.eps, "optimizer");
    visit("weight_decay", self.weight_decay, "optimizer");
    visit("step", self.step, "optimizer: number of the update, from 1");
    visit("grad_clip", self.grad_clip, "optimizer");
  }
};

struct Explain {
  std::string explain;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("explain", self.explain, "print the page of a fault; all lists them");
  }
};

struct DiagnoseRequest {
  std::vector<std::string> files;
  AttentionSettings attention;
  OtherSettings other;
  Explain explain;
  LiveSettings live;
};

// ------------------------------------------------------------------ JSON

nlohmann::ordered_json FaultJson(const FaultKind& fault) {
  return {{"id", fault.id},       {"what", fault.what}, {"repair", fault.repair},
          {"torch", fault.torch}, {"cpp", fault.cpp},   {"test", fault.test}};
}

nlohmann::ordered_json DiagnosisJson(const Diagnosis& diagnosis) {
  nlohmann::ordered_json explanations = nlohmann::ordered_json::array();
  for (const Explanation& explanation : diagnosis.explanations) {
    nlohmann::ordered_json json = {{"faults", explanation.faults},
                                   {"residual", explanation.residual}};
    if (!explanation.detail.empty()) json["detail"] = explanation.detail;
    explanations.push_back(std::move(json));
  }
  nlohmann::ordered_json first;
  if (const std::optional<FirstDifference>& difference = diagnosis.first_difference) {
    first = {{"tensor", difference->tensor}, {"index", difference->index}};
  }
  return {{"verdict", NameOf(diagnosis.verdict)},
          {"explanations", std::move(explanations)},
          {"conventions", diagnosis.conventions},
          {"reference_residual", diagnosis.reference_residual},
          {"noise_floor", diagnosis.noise_floor},
          {"first_difference", std::move(first)},
          {"equal_rows", diagnosis.equal_rows},
          {"ask_for", diagnosis.ask_for},
          {"seen", diagnosis.seen}};
}

// A number that is not finite is null.
nlohmann::ordered_json LiveJson(const LiveReport& report) {
  nlohmann::ordered_json json = DiagnosisJson(report.diagnosis);
  json["checks"] = nlohmann::ordered_json::array();
  for (const CheckResult& check : report.checks) {
    json["checks"].push_back({{"name", check.name},
                              {"verdict", NameOf(check.verdict)},
                              {"value", check.value},
                              {"bound", check.bound},
                              {"tried", check.tried},
                              {"rules_out", check.rules_out},
                              {"note", check.note}});
  }
  json["failing_input"] = nullptr;
  if (const std::optional<FailingInput>& input = report.failing_input) {
    json["failing_input"] = {{"mode", input->mode},         {"batch_size", input->B},
                             {"positions", input->T},       {"chunks", input->chunks},
                             {"residual", input->residual}, {"code", input->code}};
  }
  json["runs"] = report.runs;
  return json;
}

// ------------------------------------------------------------------ text

// "label     text", wrapped behind the label.
std::string Labelled(std::string_view label, std::string_view text, size_t width) {
  constexpr size_t kLabel = 18;
  return fmt::format("{:<{}}{}\n", label, kLabel, Wrap(text, width - kLabel, kLabel));
}

std::string FaultText(const FaultKind& fault, size_t width) {
  return fmt::format("{}\n", fault.id) + Labelled("  what", fault.what, width) +
         Labelled("  repair", fault.repair, width) + Labelled("  PyTorch", fault.torch, width) +
         Labelled("  C++", fault.cpp, width) + Labelled("  how to tell", fault.test, width);
}

std::string NameText(const Explanation& explanation) {
  return explanation.faults.empty() ? "the correct formula"
                                    : fmt::format("{}", fmt::join(explanation.faults, " + "));
}

std::string VerdictText(const Diagnosis& diagnosis) {
  switch (diagnosis.verdict) {
    case DiagnosisVerdict::kCorrect:
      return "correct: the right formula reproduces these numbers";
    case DiagnosisVerdict::kFault:
      return "fault: " + NameText(diagnosis.explanations[0]);
    case DiagnosisVerdict::kAmbiguous:
      return fmt::format("ambiguous: {} explanations reproduce these numbers equally well",
                         diagnosis.explanations.size());
    case DiagnosisVerdict::kUnexplained:
      return "unexplained: neither the right formula nor a known fault reproduces these numbers";
  }
  return "";
}

// Ranges of positions: "0-3, 7".
std::string RowsText(const std::vector<int64_t>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size();) {
    size_t last = i;
    while (last + 1 < rows.size() && rows[last + 1] == rows[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += last == i ? fmt::format("{}", rows[i]) : fmt::format("{} to {}", rows[i], rows[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : (rows.size() == 1 ? "row " : "rows ") + text;
}

std::string Table(const Diagnosis& diagnosis, size_t width) {
  std::string text = fmt::format("{:>10}  {}\n", "residual", "explanation");
  const auto row = [&](double residual, const std::string& name) {
    text += fmt::format("{:>10}  {}\n", FormatFigure(residual), Wrap(name, width - 12, 12));
  };
  for (const Explanation& explanation : diagnosis.explanations) {
    const std::string& detail = explanation.detail;
    row(explanation.residual, NameText(explanation) + (detail.empty() ? "" : ": " + detail));
  }
  if (diagnosis.verdict != DiagnosisVerdict::kCorrect) {
    row(diagnosis.reference_residual, "the correct formula");
  }
  row(diagnosis.noise_floor, "what rounding may leave");
  return text;
}

std::string DiagnosisText(const Diagnosis& diagnosis, size_t width) {
  std::string text =
      Wrap(VerdictText(diagnosis), width, 0) + "\n\n" + Table(diagnosis, width) + "\n";
  if (const std::optional<FirstDifference>& first = diagnosis.first_difference) {
    text += Labelled("first difference", Printable(first->tensor) + " " + ShapeText(first->index),
                     width);
  }
  if (diagnosis.verdict != DiagnosisVerdict::kCorrect) {
    text += Labelled("what agrees", RowsText(diagnosis.equal_rows), width);
  }
  std::vector<std::string> conventions;
  for (const auto& [name, value] : diagnosis.conventions) conventions.push_back(name + " " + value);
  if (!conventions.empty()) {
    text += Labelled("found by trying", fmt::format("{}", fmt::join(conventions, ", ")), width);
  }
  for (const std::string& sentence : diagnosis.seen) {
    text += Labelled("seen", Printable(sentence), width);
  }
  if (!diagnosis.ask_for.empty()) {
    text +=
        Labelled("would tell more", fmt::format("{}", fmt::join(diagnosis.ask_for, ", ")), width);
  }
  std::vector<std::string> shown;
  for (const Explanation& explanation : diagnosis.explanations) {
    for (const std::string& id : explanation.faults) {
      if (std::find(shown.begin(), shown.end(), id) != shown.end()) continue;
      shown.push_back(id);
      if (const Result<const FaultKind*> fault = FindFault(id)) {
        text += "\n" + FaultText(**fault, width);
      }
    }
  }
  return text;
}

std::string LiveText(const LiveReport& report, size_t width) {
  std::string text = DiagnosisText(report.diagnosis, width) + "\n";
  text += fmt::format("{:<8} {:<15} {:>9} {:>9}  {}\n", "verdict", "check", "value", "bound",
                      "what was tried");
  constexpr size_t kFigures = 46;
  std::vector<std::string_view> skipped;
  for (const CheckResult& check : report.checks) {
    if (check.verdict == CheckVerdict::kSkipped) {
      skipped.push_back(check.name);
      continue;
    }
    const std::string words =
        std::string(check.tried) + (check.note.empty() ? "" : ": ") + Printable(check.note);
    text += fmt::format("{:<8} {:<15} {:>9} {:>9}  {}\n", NameOf(check.verdict), check.name,
                        FormatFigure(check.value), FormatFigure(check.bound),
                        Wrap(words, width - kFigures, kFigures));
  }
  if (!skipped.empty()) {
    constexpr size_t kVerdict = 9;
    text += "skipped  " +
            Wrap(fmt::format("{}: not asked, --json says why of each", fmt::join(skipped, "; ")),
                 width - kVerdict, kVerdict) +
            "\n";
  }
  text += fmt::format("\nruns of the program: {}\n", report.runs);
  if (const std::optional<FailingInput>& input = report.failing_input) {
    text += fmt::format(
        "\nshortest failing input, to paste into a test: batch size {}, {} position{}, "
        "residual {}\n\n{}",
        input->B, input->T, Plural(input->T), FormatFigure(input->residual), input->code);
  }
  return text;
}

// ------------------------------------------------------------------ the command

Result<Verdict> RunExplain(Session& session, const DiagnoseRequest& request) {
  if (!request.files.empty()) {
    return BadRequest("--explain", "'" + request.files[0] + "' beside it", "--explain alone");
  }
  const size_t width = session.terminal.text_width();
  if (request.explain.explain != "all") {
    HEED_ASSIGN(const FaultKind* fault, FindFault(request.explain.explain));
    HEED_TRY(session.terminal.Document(DocumentText(FaultJson(*fault))));
    HEED_TRY(session.terminal.Say(FaultText(*fault, width)));
    return Verdict::kDone;
  }
  const bool below = width < 60;  // what each is, below its name
  const size_t indent = below ? 4 : 37;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::string text;
  std::vector<const FaultKind*> listed;
  for (const DumpKind& kind : DumpKinds()) {
    const std::span<const FaultKind> faults = kind.faults();
    // Layer norm and RMS norm share one list.
    if (!listed.empty() && listed.back() == faults.data()) continue;
    listed.push_back(faults.data());
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", kind.name);
    for (const FaultKind& fault : faults) {
      text += fmt::format("  {:<{}}{}{}\n", fault.id, below ? 0 : 33, below ? "\n    " : "  ",
                          Wrap(fault.what, width - indent, indent));
      nlohmann::ordered_json json = FaultJson(fault);
      json["kind"] = kind.name;
      all.push_back(std::move(json));
    }
  }
  HEED_TRY(session.terminal.Document(DocumentText(all)));
  HEED_TRY(session.terminal.Say(text));
  return Verdict::kDone;
}

// What was given as options, by name.
SettingTexts GivenSettings(const Session& session, const DiagnoseRequest& request) {
  SettingTexts texts = TextsOf(request.attention);
  OtherSettings::Fields(request.other, [&](std::string_view name, const std::string& value,
                                           std::string_view) { texts.emplace(name, value); });
  std::erase_if(texts, [&](const auto& entry) { return !session.options.Given(entry.first); });
  return texts;
}

Result<Verdict> RunLive(Session& session, const DiagnoseRequest& request) {
  if (!request.files.empty()) {
    return BadRequest("--run", "'" + request.files[0] + "' beside it", "--run alone");
  }
  SettingTexts given = GivenSettings(session, request);
  const std::set<std::string_view> of_attention = {"kind", "alibi", "qk_norm", "qk_layernorm",
                                                   "norm_eps"};
  std::string other;
  OtherSettings::Fields(request.other,
                        [&](std::string_view name, const std::string&, std::string_view) {
                          if (!of_attention.contains(name) && given.contains(std::string(name)))
                            other = name;
                        });
  if (!other.empty()) {
    return BadRequest("--run", other + " beside it", "settings of attention",
                      "save a DUMP for what is not");
  }
  if (const auto kind = given.find("kind"); kind != given.end() && kind->second != "attention") {
    return BadRequest("--kind", "'" + kind->second + "' with --run", "attention");
  }
  given.erase("kind");
  const InterruptGuard guard;
  HEED_ASSIGN(
      const LiveReport report,
      DiagnoseLive({.settings = request.live,
                    .given = std::move(given),
                    .stop = &InterruptGuard::flag(),
                    .note = [&](const std::string& line) { session.terminal.Note(line); }}));
  HEED_TRY(session.terminal.Document(DocumentText(LiveJson(report))));
  HEED_TRY(session.terminal.Say(LiveText(report, session.terminal.text_width())));
  const bool failed = std::ranges::any_of(report.checks, [](const CheckResult& check) {
    return check.verdict == CheckVerdict::kFailed;
  });
  return report.diagnosis.verdict == DiagnosisVerdict::kCorrect && !failed ? Verdict::kDone
                                                                           : Verdict::kNegative;
}

Result<Verdict> RunDiagnose(Session& session, const DiagnoseRequest& request) {
  if (!request.explain.explain.empty()) return RunExplain(session, request);
  if (session.options.Given("run")) return RunLive(session, request);
  if (request.files.size() != 1) {
    return BadRequest("DUMP", fmt::format("{} files", request.files.size()),
                      "one .safetensors or .npz file, --run COMMAND or --explain all");
  }
  const std::string& path = request.files[0];
  SettingTexts given = GivenSettings(session, request);
  if (session.options.Given("dropout")) {
    given["dropout"] = fmt::format("{}", request.live.dropout);
  }
  HEED_ASSIGN(const TensorFile file, TensorFile::Open(path));
  HEED_ASSIGN(const DumpKind* kind, KindOf(file, path, given));
  HEED_ASSIGN(const Diagnosis diagnosis, kind->diagnose(file, path, given));
  HEED_TRY(session.terminal.Document(DocumentText(DiagnosisJson(diagnosis))));
  HEED_TRY(session.terminal.Say(DiagnosisText(diagnosis, session.terminal.text_width())));
  return diagnosis.verdict == DiagnosisVerdict::kCorrect ? Verdict::kDone : Verdict::kNegative;
}

}  // namespace

Command DiagnoseCommand() {
  Command command;
  command.name = "diagnose";
  command.summary = "name the fault in somebody else's implementation, from saved tensors";
  command.explanation =
      "Reads what an implementation was given and what it made of it, and answers: correct; or "
      "this "
      "known fault, because replaying it reproduces these numbers and the right formula does not; "
      "or these faults, which the tensors at hand cannot tell apart, with the tensor that could; "
      "or "
      "none, with what is right and where it first parts. A dump of attention holds x and the "
      "weights, or q, k and v, as heed attention reads them, past_k and past_v behind a cache, and "
      "y, with any of q k v q_rot k_rot scores pattern z merged beside it. Settings are the file's "
      "own or options; what is not stated is tried: layout, pairing, origin of positions, order "
      "of fused rows. --kind names other dumps. --explain NAME prints what is known of a fault.";
  command.example =
      "heed diagnose layer.safetensors --n-head 6 --n-kv-head 2 --position rope\n"
      "heed diagnose norm.npz --kind layernorm --json\n"
      "heed diagnose --run \"python3 examples/diagnose/numpy_attention.py\"\n"
      "heed diagnose --explain mask_missing";
  command.declare = [](Options& options) -> CommandBody {
    auto request = std::make_shared<DiagnoseRequest>();
    options.BindArguments("[DUMP]", "a .safetensors or .npz file of tensors", &request->files);
    options.Bind("Catalogue", request->explain);
    options.Bind("A program that answers", request->live);
    options.Bind("Attention", request->attention);
    options.Bind("Other kinds", request->other);
    return [request](Session& session) { return RunDiagnose(session, *request); };
  };
  return command;
}

}  // namespace heed
