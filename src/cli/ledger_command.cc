#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fields_text.h"
#include "base/plural.h"
#include "cli/command.h"
#include "inspect/ledger.h"
#include "io/file.h"
#include "model/config_json.h"
#include "model/load.h"
#include "report/format.h"
#include "report/table.h"
#include "tensor/shape.h"
#include "train/presets.h"

namespace heed {
namespace {

constexpr size_t kMostConfigBytes = size_t{16} << 20;
constexpr int64_t kDefaultLength = 64;

struct LedgerOptions {
  std::string preset;
  int64_t batch_size = 1;
  int64_t seq = 0;
  CacheType cache_dtype = CacheType::kF32;
  double memory = std::numeric_limits<double>::quiet_NaN();

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("preset", self.preset, "named size; other options change it");
    visit("batch_size", self.batch_size, "sequences in a batch");
    visit("seq", self.seq, "positions of each; block_size when not given");
    visit("cache_dtype", self.cache_dtype, "numbers of the key/value cache");
    visit("memory", self.memory, "GiB that training should fit in; this machine's if not given");
  }
};

struct LedgerSpec {
  std::vector<std::string> arguments;
  LedgerOptions options;
  ModelConfig model;
};

// Of a folder the settings are enough; files hold them among the weights.
Result<ModelConfig> ConfigOf(const std::string& model) {
  if (FormatOf(model) != CheckpointFormat::kHuggingFace) {
    HEED_ASSIGN(const LoadedModel loaded, LoadModel(model, ReferenceKernels()));
    return loaded.model->config();
  }
  const std::string path = (std::filesystem::path(model) / "config.json").string();
  HEED_ASSIGN(const std::string text, ReadFile(path, kMostConfigBytes));
  return ParseModelConfig(text, path);
}

// The memory that --memory names, or the machine's.
Result<MachineMemory> MemoryToFit(const Session& session, double gib) {
  MachineMemory memory = ReadMachineMemory();
  if (!session.options.Given("memory")) return memory;
  constexpr double kMost = 1 << 20;
  if (!(gib > 0 && gib <= kMost)) {
    return BadRequest("--memory", fmt::format("{}", gib), "GiB above 0, at most 1048576");
  }
  memory.total = static_cast<int64_t>(gib * (int64_t{1} << 30));
  return memory;
}

// The model's settings: of a folder, of a preset, or typed; and how much of it is asked for.
Result<LedgerRequest> MakeRequest(Session& session, LedgerSpec& spec) {
  LedgerOptions& options = spec.options;
  Options& given = session.options;
  if (spec.arguments.size() > 1) {
    return BadRequest("MODEL", fmt::format("{} folders", spec.arguments.size()), "one, or none");
  }
  if (!spec.arguments.empty()) {
    const std::string other = given.FirstGivenBut(std::vector<std::string_view>{
        "batch_size", "seq", "cache_dtype", "memory", "json", "quiet", "threads", "seed"});
    if (!other.empty()) return BadRequest(other, "given beside a model", "the model's own sizes");
    HEED_ASSIGN(spec.model, ConfigOf(spec.arguments[0]));
  } else {
    const ModelKind kind = spec.model.model;
    TrainSettings unused;
    if (!options.preset.empty()) HEED_TRY(ApplyPreset(options.preset, &spec.model, &unused));
    ApplyKind(kind, &spec.model);
    HEED_TRY(given.Apply());
  }
  if (given.Given("seq") && options.seq < 1) {
    return BadRequest("--seq", fmt::format("{}", options.seq), "1 or more");
  }
  if (spec.arguments.empty() && options.preset.empty() && !given.Given("block_size")) {
    spec.model.block_size = given.Given("seq") ? options.seq : kDefaultLength;
  }
  const int64_t T = given.Given("seq") ? options.seq : spec.model.block_size;
  return LedgerRequest{spec.model, options.batch_size, T, options.cache_dtype};
}

nlohmann::ordered_json LedgerJson(const Ledger& ledger) {
  using Json = nlohmann::ordered_json;
  Json tensors = Json::array(), parameters = Json::array(), groupings = Json::array();
  for (const LedgerTensor& t : ledger.tensors) {
    tensors.push_back({{"name", t.name},
                       {"axes", t.axes},
                       {"shape", t.shape},
                       {"elements", t.elements},
                       {"bytes", t.bytes},
                       {"flops", t.flops},
                       {"copy", t.copy},
                       {"memory", t.memory}});
  }
  for (const Parameter& p : ledger.parameters) {
    parameters.push_back(
        {{"name", p.name}, {"axes", p.axes}, {"shape", p.shape}, {"elements", p.elements}});
  }
  for (const GroupingRow& row : ledger.groupings) {
    groupings.push_back({{"n_kv_head", row.n_kv_head},
                         {"kind", row.kind},
                         {"elements", row.cache_elements},
                         {"bytes", row.cache_bytes},
                         {"parameters", row.parameters}});
  }
  const TrainingBytes& b = ledger.training;
  return {{"config", Json::parse(ToJson(ledger.config))},
          {"batch_size", ledger.B},
          {"seq", ledger.T},
          {"tensors", std::move(tensors)},
          {"kv_cache",
           {{"elements", ledger.cache_elements},
            {"bytes", ledger.cache_bytes},
            {"elements_mha", ledger.cache_elements_mha},
            {"measured_bytes",
             ledger.measured_cache_bytes ? Json(*ledger.measured_cache_bytes) : Json()}}},
          {"groupings", std::move(groupings)},
          {"parameters", ledger.parameter_count},
          {"parameter_tensors", std::move(parameters)},
          {"flops_forward", ledger.flops_forward},
          {"flops_training_step", ledger.flops_training_step},
          {"bytes_activations", ledger.activation_bytes},
          {"bytes_training", b.total()},
          {"bytes_training_recompute", ledger.recompute_bytes},
          {"bytes_training_parts",
           {{"parameters", b.parameters},
            {"gradients", b.gradients},
            {"optimizer", b.optimizer},
            {"saved_activations", b.saved},
            {"workspace", b.workspace}}},
          {"machine_bytes", ledger.machine.total},
          {"fits", ledger.fits},
          {"change", ledger.fits ? Json() : Json(ledger.changes[0])},
          {"changes", ledger.changes}};
}

// "view of qkv" for "view of h.0.attn.qkv": the row's own block is meant.
std::string ShortMemory(const std::string& memory) {
  const size_t name = memory.rfind(' ') + 1, dot = memory.rfind('.');
  return dot == std::string::npos ? memory : memory.substr(0, name) + memory.substr(dot + 1);
}

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }
std::string Flops(int64_t flops) { return FormatQuantity(static_cast<double>(flops)); }

std::string TensorTable(const Ledger& ledger, size_t width) {
  Table table{"",
              {"forward pass", "axes", "shape", "elements", "bytes", "FLOPs", "memory"},
              {},
              {"axes", "memory"}};
  for (const LedgerTensor& t : ledger.tensors) {
    if (OfALaterBlock(t.name)) continue;
    table.rows.push_back({t.name, t.axes, ShapeText(t.shape), FormatCount(t.elements),
                          Bytes(t.bytes), t.flops == 0 ? "-" : Flops(t.flops),
                          ShortMemory(t.memory)});
  }
  return TableText(table, width) + LaterBlocksLine(ledger.config.n_layer);
}

std::string ParameterTable(const Ledger& ledger, size_t width) {
  Table table{"", {"parameters", "axes", "shape", "elements"}, {}, {"axes"}};
  for (const Parameter& p : ledger.parameters) {
    if (OfALaterBlock(p.name)) continue;
    table.rows.push_back({p.name, p.axes, ShapeText(p.shape), FormatCount(p.elements)});
  }
  return TableText(table, width) + LaterBlocksLine(ledger.config.n_layer);
}

std::string CacheTable(const Ledger& ledger, size_t width) {
  constexpr size_t kIndent = 13;
  const ModelConfig& c = ledger.config;
  Table table{"", {"key/value cache", "elements", "bytes", "share", "parameters"}, {}, {}};
  for (const GroupingRow& row : ledger.groupings) {
    table.rows.push_back(
        {fmt::format("{} {:>3} head{}{}", row.kind, row.n_kv_head, Plural(row.n_kv_head),
                     row.n_kv_head == c.n_kv_head ? " <- this" : ""),
         FormatCount(row.cache_elements), FormatCount(row.cache_bytes),
         fmt::format("1/{}", c.n_head / row.n_kv_head), FormatCount(row.parameters)});
  }
  const auto line = [&](std::string_view label, const std::string& words) {
    return fmt::format("{:<{}}{}\n", label, kIndent, Wrap(words, width - kIndent, kIndent));
  };
  std::string text = TableText(table, width);
  text += line("by formula",
               fmt::format("2 x layers {} x sequences {} x key/value heads {} x positions {} x "
                           "width {} = {} elements, {} bytes in {}",
                           c.n_layer, ledger.B, c.n_kv_head, ledger.T, c.head_dim,
                           FormatCount(ledger.cache_elements), FormatCount(ledger.cache_bytes),
                           NameOf(ledger.cache_type)));
  text += line("by measure", ledger.measured_cache_bytes
                                 ? fmt::format("{} bytes held by the cache, in f32",
                                               FormatCount(*ledger.measured_cache_bytes))
                                 : "the system gives no such memory");
  if (c.n_kv_head < c.n_head) {
    text += line("", fmt::format("query heads 0 to {} read key/value head 0 where it lies: no copy "
                                 "is made",
                                 c.n_head / c.n_kv_head - 1));
  }
  return text;
}

std::string MemoryText(const Ledger& ledger, size_t width) {
  const TrainingBytes& b = ledger.training;
  Table table{"", {"training keeps", "bytes", ""}, {}, {}};
  const std::pair<const char*, int64_t> rows[] = {
      {"parameters", b.parameters},
      {"gradients", b.gradients},
      {"AdamW's two moments", b.optimizer},
      {"saved activations", b.saved},
      {"workspace", b.workspace},
      {"in all", b.total()},
      {"in all with --recompute", ledger.recompute_bytes},
      {"inference with a cache", b.parameters + ledger.activation_bytes + ledger.cache_bytes}};
  for (const auto& [name, n] : rows) table.rows.push_back({name, FormatCount(n), Bytes(n)});
  return TableText(table, width) + "\n" +
         Wrap(fmt::format("{} FLOPs forward, {} a training step (matrix products, causal half)",
                          Flops(ledger.flops_forward), Flops(ledger.flops_training_step)),
              width, 0) +
         "\n";
}

std::string FitText(const Ledger& ledger, bool memory_given, size_t width) {
  const std::string need = Bytes(ledger.training.total()), room = Bytes(ledger.machine.total);
  const std::string place = memory_given ? room
                                         : fmt::format("this machine's {} ({} free now)", room,
                                                       Bytes(ledger.machine.free));
  std::string text = Wrap(fmt::format("training with B = {} {}: {} of {}", ledger.B,
                                      ledger.fits ? "fits" : "does not fit", need, place),
                          width, 0) +
                     "\n";
  for (const std::string& change : ledger.changes) {
    constexpr size_t kIndent = 17;
    text += fmt::format("{:>16} {}\n", &change == &ledger.changes[0] ? "smallest change:" : "or:",
                        Wrap(change, width - kIndent, kIndent));
  }
  if (!ledger.fits) {
    text += Wrap(ledger.same_updates ? fmt::format("updates stay those of {} sequence{} of {}",
                                                   ledger.B, Plural(ledger.B), ledger.T)
                                     : "this changes what is trained: nothing smaller fits",
                 width, 0) +
            "\n";
  }
  return text;
}

std::string LedgerText(const Ledger& ledger, bool memory_given, size_t width) {
  const ModelConfig& c = ledger.config;
  const std::string model = fmt::format(
      "{} layer{}, {} query head{} on {} key/value head{} of width {}, model width {}, vocabulary "
      "{}",
      c.n_layer, Plural(c.n_layer), c.n_head, Plural(c.n_head), c.n_kv_head, Plural(c.n_kv_head),
      c.head_dim, c.n_embd, c.vocab_size);
  const std::string batch =
      fmt::format("B = {} sequence{}, T = S = {} position{}; {} parameters{}", ledger.B,
                  Plural(ledger.B), ledger.T, Plural(ledger.T), FormatCount(ledger.parameter_count),
                  c.tied ? "" : ", the head not tied to the embedding");
  return Wrap(model, width, 0) + "\n" + Wrap(batch, width, 0) + "\n\n" +
         TensorTable(ledger, width) + "\n" + ParameterTable(ledger, width) + "\n" +
         CacheTable(ledger, width) + "\n" + MemoryText(ledger, width) +
         FitText(ledger, memory_given, width);
}

Result<Verdict> RunLedger(Session& session, LedgerSpec& spec) {
  HEED_ASSIGN(const LedgerRequest request, MakeRequest(session, spec));
  HEED_ASSIGN(const MachineMemory memory, MemoryToFit(session, spec.options.memory));
  HEED_ASSIGN(const Ledger ledger, MakeLedger(request, memory));
  HEED_TRY(session.terminal.Document(LedgerJson(ledger).dump(2)));
  HEED_TRY(session.terminal.Say(
      LedgerText(ledger, session.options.Given("memory"), session.terminal.text_width())));
  return Verdict::kDone;
}

}  // namespace

Command LedgerCommand() {
  Command command;
  command.name = "ledger";
  command.summary = "every tensor of a pass: axes, shape, bytes, FLOPs; cache and training memory";
  command.explanation =
      "Reads the plans of the layers, the parameters and the cache themselves, for a model's "
      "folder, a preset or typed sizes (one layer and a vocabulary of 65 when not given), without "
      "computing anything: what a forward pass holds and which tensors are views, what the "
      "key/value cache takes with as many heads as queries, fewer, or one, what training keeps, "
      "and whether that fits in this machine or in --memory, and else the smallest change that "
      "makes it fit.";
  command.example =
      "heed ledger --n-embd 8 --n-head 4 --n-kv-head 2 --batch-size 2 --seq 3\n"
      "heed ledger --preset gpt-mini --position rope --seq 256\n"
      "heed ledger runs/first --batch-size 16\n"
      "heed ledger --preset gpt2 --batch-size 8 --memory 4";
  command.declare = [](Options& options) -> CommandBody {
    auto spec = std::make_shared<LedgerSpec>();
    spec->model.n_layer = 1;
    spec->model.vocab_size = 65;
    options.BindArguments("[MODEL]", "a model: its folder, .gguf or .bin", &spec->arguments);
    options.Bind("Ledger", spec->options);
    options.Bind("Model", spec->model);
    return [spec](Session& session) { return RunLedger(session, *spec); };
  };
  return command;
}

}  // namespace heed
