#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/fields_text.h"
#include "base/plural.h"
#include "base/quote.h"
#include "cli/attention_map_command.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/steps_text.h"
#include "inspect/attention_file.h"
#include "inspect/small_attention.h"
#include "model/load.h"
#include "report/format.h"
#include "tensor/shape.h"

namespace heed {
namespace {

struct AttentionOutput {
  std::string out;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("out", self.out, "safetensors file to write");
  }
};

// The small example: rows separated by ';', numbers by ','.
struct SmallExample {
  std::string q, k, v;
  SoftmaxAxis softmax_axis = SoftmaxAxis::kRow;
  bool causal = true;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("q", self.q, "queries, as \"1,0; 0,1\": rows by ';', numbers by ','");
    visit("k", self.k, "keys");
    visit("v", self.v, "values");
    visit("softmax_axis", self.softmax_axis, "row is right; column shows what that mistake does");
    visit("causal", self.causal, "hide later keys");
  }
};

constexpr std::string_view kMapFields[] = {"text", "text_file", "layer", "head", "ablate"};
constexpr std::string_view kSmallFields[] = {"q", "k", "v", "softmax_axis", "causal"};

std::string SmallDocument(const SmallAttentionCase& example, const SmallAttention& a) {
  const int64_t T = example.q.rows, S = example.k.rows, width = example.v.columns;
  const std::vector<int64_t> square = {T, S}, out = {T, width};
  const nlohmann::ordered_json json = {{"scores", NestedJson(square, a.scores)},
                                       {"pattern", NestedJson(square, a.pattern)},
                                       {"row_sums", a.row_sums},
                                       {"output", NestedJson(out, a.output)},
                                       {"shapes",
                                        {{"q", {T, example.q.columns}},
                                         {"k", {S, example.k.columns}},
                                         {"v", {S, width}},
                                         {"scores", square},
                                         {"pattern", square},
                                         {"row_sums", {T}},
                                         {"output", out}}}};
  return json.dump(2);
}

Result<Verdict> RunSmallExample(Session& session, const std::vector<std::string>& files,
                                const SmallExample& typed) {
  if (!files.empty()) {
    return BadRequest("FILE", "'" + files[0] + "' beside typed numbers",
                      "a file, or --q, --k and --v");
  }
  std::vector<std::string_view> allowed(std::begin(kSmallFields), std::end(kSmallFields));
  allowed.insert(allowed.end(), {"json", "quiet", "threads", "seed"});
  const std::string other = session.options.FirstGivenBut(allowed);
  if (!other.empty()) {
    return BadRequest(other, "given beside typed numbers", "--q --k --v --softmax-axis --no-causal",
                      "the other settings are for a file");
  }
  SmallAttentionCase example;
  HEED_ASSIGN(example.q, ParseSmallMatrix("--q", typed.q));
  HEED_ASSIGN(example.k, ParseSmallMatrix("--k", typed.k));
  HEED_ASSIGN(example.v, ParseSmallMatrix("--v", typed.v));
  example.causal = typed.causal;
  example.softmax_axis = typed.softmax_axis;
  HEED_ASSIGN(const SmallAttention attention, ComputeSmallAttention(example));
  HEED_ASSIGN(const std::vector<Step> steps, ExplainSmallAttention(example));
  HEED_TRY(session.terminal.Document(SmallDocument(example, attention)));
  HEED_TRY(session.terminal.Say(StepsText(steps, session.terminal.text_width())));
  return Verdict::kDone;
}

// Whether the argument names a model, not a file of tensors.
bool IsModel(const std::string& path) {
  std::error_code error;
  return FormatOf(path) != CheckpointFormat::kHuggingFace ||
         std::filesystem::is_directory(path, error);
}

Result<Verdict> RunMaps(Session& session, const AttentionMapSettings& settings,
                        const std::string& model, const std::string& out) {
  std::vector<std::string_view> allowed(std::begin(kMapFields), std::end(kMapFields));
  allowed.insert(allowed.end(), {"out", "json", "quiet", "threads", "seed", "overwrite"});
  const std::string other = session.options.FirstGivenBut(allowed);
  if (!other.empty()) {
    return BadRequest(other, "given beside a model", "settings of its maps",
                      "the other settings are for numbers from a file");
  }
  return ShowAttentionMaps(session, settings, model, out);
}

std::string Document(const std::string& out, const AttentionCase& attention,
                     const std::vector<TracedTensor>& traced) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  for (const TracedTensor& tensor : traced) tensors[tensor.name] = tensor.shape;
  const nlohmann::ordered_json json = {
      {"out", out},
      {"tensors", std::move(tensors)},
      {"settings", nlohmann::ordered_json::parse(ToJson(attention.settings))}};
  return DocumentText(json);
}

std::string Table(const std::vector<TracedTensor>& traced) {
  size_t widest = 0;
  for (const TracedTensor& tensor : traced) {
    widest = std::max(widest, TextWidth(Printable(tensor.name)));
  }
  std::string text;
  for (const TracedTensor& tensor : traced) {
    const std::string name = Printable(tensor.name);
    text += name + std::string(widest + 2 - TextWidth(name), ' ') + ShapeText(tensor.shape) + "\n";
  }
  return text;
}

// "12 query heads on 4 key/value heads of width 64, rope (half, theta 10000) from position 0, ..."
std::string Summary(const AttentionCase& attention) {
  const AttentionSettings& s = attention.settings;
  std::string text = fmt::format(
      "causal self-attention of {} x {} position{}: {} query head{} on {} key/value head{} of "
      "width {}",
      attention.B, attention.T, Plural(attention.T), s.n_head, Plural(s.n_head), s.n_kv_head,
      Plural(s.n_kv_head), s.head_dim);
  if (s.position == Position::kRope) {
    text += fmt::format(", {} of {} channels rotated ({}, theta {}) from position {}", s.rotary_dim,
                        s.head_dim, NameOf(s.rope_pairing), s.rope_theta,
                        s.rope_first_position + attention.P);
  } else {
    text += ", nothing rotated";
  }
  if (attention.P > 0) text += fmt::format(", behind {} cached positions", attention.P);
  if (s.window > 0) text += fmt::format(", each seeing {} keys at most", s.window);
  if (!attention.dy.empty()) text += ", with gradients";
  return text + fmt::format("; computed in F64, written in {}", NameOf(attention.dtype));
}

Result<Verdict> RunAttention(Session& session, const std::vector<std::string>& files,
                             const AttentionSettings& settings, const std::string& out) {
  if (files.size() != 1) {
    return BadRequest("FILE", fmt::format("{} files", files.size()),
                      "a model, one .safetensors or .npz file, or --q, --k and --v");
  }
  if (out.empty()) return BadRequest("--out", "nothing", "a safetensors file to write");
  SettingTexts given = TextsOf(settings);
  std::erase_if(given, [&](const auto& entry) { return !session.options.Given(entry.first); });

  HEED_ASSIGN(const TensorFile file, TensorFile::Open(files[0]));
  HEED_ASSIGN(const AttentionCase attention, ReadAttentionCase(file, files[0], given));
  const std::vector<TracedTensor> traced = TraceAttention(attention);
  HEED_TRY(WriteTrace(out, attention, traced, session.globals.overwrite));
  HEED_TRY(session.terminal.Document(Document(out, attention, traced)));
  const std::string summary =
      Wrap(Printable(out) + ": " + Summary(attention), session.terminal.text_width() - 2, 2);
  HEED_TRY(session.terminal.Say(Table(traced) + summary + "\n"));
  return Verdict::kDone;
}

}  // namespace

Command AttentionCommand() {
  Command command;
  command.name = "attention";
  command.summary = "one causal self-attention on given numbers, every intermediate kept";
  command.explanation =
      "Reads x [B, T, C] with q_proj.weight, k_proj.weight, v_proj.weight and o_proj.weight as "
      "torch.nn.Linear has them ([out, in]), or GPT-2's c_attn.weight and c_proj.weight, with "
      "optional biases; or q [B, H, T, D] with k and v [B, Hkv, T, D]; and, for a chunk behind a "
      "cache, past_k (already rotated) and past_v [B, Hkv, P, D]. Writes q k v q_rot k_rot scores "
      "(scaled, -inf where hidden) pattern (0 there) z merged y and, when there is dy, the "
      "gradients of sum(y * dy) as grad.NAME. Settings that are not given are the file's own: its "
      "metadata, or numbers and strings of shape [] under the same names. With --q, --k and --v a "
      "small example of one head is worked aloud: products, scores, mask, softmax, output. Of a "
      "model it shows where the heads look on a --text; --layer and --head draw one map "
      "here, --out FILE.svg, .png or .safetensors keeps all of them, and --ablate tells what the "
      "loss becomes without each head.";
  command.example =
      "heed attention layer.safetensors --out trace.safetensors\n"
      "heed attention layer.npz --n-head 4 --position rope --out trace.safetensors\n"
      "heed attention --q \"1;2\" --k \"1;3\" --v \"10;20\"\n"
      "heed attention runs/first --text \"Once upon a time\" --layer 0 --head 1\n"
      "heed attention runs/first --text-file held-out.txt --ablate --out heads.svg";
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto files = std::make_shared<std::vector<std::string>>();
    auto settings = std::make_shared<AttentionSettings>();
    auto output = std::make_shared<AttentionOutput>();
    auto small = std::make_shared<SmallExample>();
    options.BindArguments(
        "FILE|MODEL",
        "a .safetensors or .npz file of tensors, or a model: its folder, .gguf or .bin",
        files.get());
    options.Bind("Output", *output);
    options.Bind("Attention", *settings);
    options.Bind("Small example", *small);
    auto maps = std::make_shared<AttentionMapSettings>();
    options.Bind("Maps of a model", *maps);
    return [files, settings, output, small, maps](Session& session) {
      if (files->size() == 1 && IsModel((*files)[0])) {
        return RunMaps(session, *maps, (*files)[0], output->out);
      }
      for (const std::string_view field : kMapFields) {
        if (!session.options.Given(field)) continue;
        return Result<Verdict>(
            BadRequest("--" + std::string(field), "given without a model", "heed attention MODEL"));
      }
      for (const std::string_view field : kSmallFields) {
        if (session.options.Given(field)) return RunSmallExample(session, *files, *small);
      }
      return RunAttention(session, *files, *settings, output->out);
    };
  };
  return command;
}

}  // namespace heed
