#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/fields_text.h"
#include "base/parallel.h"
#include "base/plural.h"
#include "baseline/open.h"
#include "cli/command.h"
#include "cli/json.h"
#include "report/format.h"
#include "report/table.h"
#include "tensor/shape.h"

namespace heed {
namespace {

nlohmann::ordered_json MachineJson() {
  return {{"version", HEED_VERSION},
          {"threads", NumThreads()},
          {"instruction_set", SimdTarget()},
          {"instruction_sets", SimdTargets()}};
}

std::string MachineText() {
  return fmt::format("heed {} on {} thread{} with {} (of {})", HEED_VERSION, NumThreads(),
                     Plural(NumThreads()), SimdTarget(), fmt::join(SimdTargets(), ", "));
}

nlohmann::ordered_json ModelJson(const LanguageModel& loaded) {
  const Gpt& model = *loaded.gpt;
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const Parameter& p : model.parameters().all()) {
    tensors.push_back({{"name", p.name},
                       {"axes", p.axes},
                       {"shape", p.shape},
                       {"elements", p.elements},
                       {"group", p.decayed() ? "decay" : "no decay"}});
  }
  return {{"model_type", NameOf(model.config().family())},
          {"config", nlohmann::ordered_json::parse(ToJson(model.config()))},
          {"dtype", NameOf(loaded.dtype)},
          {"parameters", model.parameters().elements()},
          {"tensors", tensors}};
}

std::string ModelText(const LanguageModel& loaded, size_t width) {
  const Gpt& model = *loaded.gpt;
  const ModelConfig& c = model.config();
  std::string text =
      fmt::format("model_type {}  dtype {}", NameOf(c.family()), NameOf(loaded.dtype));
  size_t used = text.size();
  ModelConfig::Fields(c, [&](std::string_view name, const auto& value, std::string_view) {
    std::string item = fmt::format("  {} {}", name, JsonText(value));
    std::erase(item, '"');
    if (used + item.size() > width) text += "\n", used = 0;
    text += item;
    used += item.size();
  });
  Table table{
      "", {"parameter", "axes", "shape", "elements", "AdamW group"}, {}, {"axes", "AdamW group"}};
  int64_t decayed = 0, plain = 0;
  for (const Parameter& p : model.parameters().all()) {
    (p.decayed() ? decayed : plain) += p.elements;
    if (OfALaterBlock(p.name)) continue;
    table.rows.push_back({p.name, p.axes, ShapeText(p.shape), FormatCount(p.elements),
                          p.decayed() ? "decay" : "no decay"});
  }
  const std::string sums =
      fmt::format("{} parameters, {}: {} with weight decay, {} without",
                  FormatCount(model.parameters().elements()),
                  FormatBytes(static_cast<double>(model.parameters().elements()) * 4),
                  FormatCount(decayed), FormatCount(plain));
  return text + "\n\n" + TableText(table, width) + LaterBlocksLine(c.n_layer) + "\n" +
         Wrap(sums, width, 0) + "\n";
}

Result<Verdict> Run(Session& session, const std::vector<std::string>& arguments) {
  if (arguments.size() > 1) {
    return BadRequest("MODEL", fmt::format("{} folders", arguments.size()), "one, or none");
  }
  nlohmann::ordered_json json = MachineJson();
  const size_t width = session.terminal.text_width();
  std::string text = Wrap(MachineText(), width, 0) + "\n";
  if (!arguments.empty()) {
    HEED_ASSIGN(const LanguageModel loaded, OpenModel(arguments[0], SimdKernels()));
    if (loaded.gpt) {
      json.update(ModelJson(loaded));
      text += ModelText(loaded, width);
    } else {
      json["description"] = loaded.predictor->Description();
      text += loaded.predictor->Description();
    }
    if (loaded.tokenizer) {
      const Tokenizer& tokenizer = **loaded.tokenizer;
      json["tokenizer"] = {{"kind", tokenizer.kind()}, {"vocab_size", tokenizer.vocab_size()}};
      text += fmt::format("vocabulary: {}, {} tokens\n", tokenizer.kind(), tokenizer.vocab_size());
    } else {
      text += "vocabulary: " + loaded.tokenizer.error().Message() + "\n";
    }
  }
  HEED_TRY(session.terminal.Document(DocumentText(json)));
  HEED_TRY(session.terminal.Say(text));
  return Verdict::kDone;
}

}  // namespace

Command InfoCommand() {
  Command command;
  command.name = "info";
  command.summary = "this machine, and what a model is made of";
  command.explanation =
      "Prints the instruction set and threads in use and, for a model's folder, its settings and "
      "every parameter with its named axes, shape and AdamW group; the first block stands for all, "
      "but with --json.";
  command.example = "heed info\nheed info runs/first";
  command.declare = [](Options& options) -> CommandBody {
    auto arguments = std::make_shared<std::vector<std::string>>();
    options.BindArguments("[MODEL]", "a model: its folder, .gguf or .bin", arguments.get());
    return [arguments](Session& session) { return Run(session, *arguments); };
  };
  return command;
}

}  // namespace heed
