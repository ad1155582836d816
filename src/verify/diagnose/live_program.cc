#include "verify/diagnose/live_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/process.h"
#include "base/quote.h"
#include "tensor/shape.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

// ------------------------------------------------------------------ the question

// Tensors as float32, kept until they are written.
class TensorList {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<double>& values) {
    floats_.push_back(std::make_unique<std::vector<float>>(values.begin(), values.end()));
    list_.push_back({name, DType::kF32, std::move(shape), floats_.back()->data(), {}});
  }
  // The weights and biases that were stored as parts of one.
  void Add(const SavedLinear& linear) {
    for (const WeightPart& part : linear.parts) {
      std::vector<double> weight, bias;
      for (const int64_t row : part.rows) {
        const auto first = linear.weight.begin() + row * linear.in;
        weight.insert(weight.end(), first, first + linear.in);
        bias.push_back(linear.bias[row]);
      }
      const auto rows = static_cast<int64_t>(part.rows.size());
      Add(part.weight, {rows, linear.in}, weight);
      if (!part.bias.empty()) Add(part.bias, {rows}, bias);
    }
  }
  const std::vector<TensorToWrite>& list() const { return list_; }

 private:
  std::vector<std::unique_ptr<std::vector<float>>> floats_;
  std::vector<TensorToWrite> list_;
};

std::vector<double> OneHead(const std::vector<double>& values, int64_t D) {
  return {values.begin(), values.begin() + D};
}

SettingTexts MetadataOf(const LiveQuestion& question) {
  const AttentionCase& a = question.attention;
  SettingTexts all = TextsOf(a.settings), told;
  for (const char* size : {"n_head", "n_kv_head", "head_dim"}) told[size] = all[size];
  for (const std::string& name : question.settings) {
    if (all.contains(name)) told[name] = all[name];
  }
  told["n_embd"] = std::to_string(a.proj.out);
  told["batch_size"] = std::to_string(a.B);
  told["block_size"] = std::to_string(a.T);
  told["mode"] = question.mode;
  told["dropout"] = fmt::format("{}", question.dropout);
  told["bias"] = a.qkv.parts[0].bias.empty() ? "false" : "true";
  const AttentionContext& context = question.context;
  if (context.alibi) told["alibi"] = "true";
  if (context.HasNorm()) {
    const bool before = context.qk_norm == NormPlace::kBeforeRotation;
    told["qk_norm"] = before ? "before_rope" : "after_rope";
    told["qk_layernorm"] = context.qk_layernorm == true ? "true" : "false";
    told["norm_eps"] = fmt::format("{}", *context.norm_eps);
  }
  if (!question.chunks.empty()) told["chunks"] = fmt::format("{}", fmt::join(question.chunks, ","));
  if (!question.want.empty()) told["want"] = question.want;
  return told;
}

bool IsSame(const LiveQuestion& a, const LiveQuestion& b) {
  const AttentionCase &x = a.attention, &y = b.attention;
  return a.mode == b.mode && a.chunks == b.chunks && a.dropout == b.dropout && a.want == b.want &&
         x.B == y.B && x.T == y.T && x.x == y.x && x.qkv.weight == y.qkv.weight;
}

// ------------------------------------------------------------------ failures

std::string LastLine(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  constexpr size_t kMost = 240;
  return Printable(last.substr(0, kMost));
}

bool Has(const std::string& text, std::initializer_list<const char*> words) {
  return std::ranges::any_of(
      words, [&](const char* word) { return text.find(word) != std::string::npos; });
}

struct Failed {
  const char* kind;
  const char* hint;
};

// What a program that ended with an error code says of itself.
Failed KindOf(int exit_code, const std::string& last) {
  if (exit_code == 127) return {"not_found", "is the program installed, and spelled so?"};
  if (exit_code == 126) return {"not_found", "make it executable, or name its interpreter"};
  if (Has(last, {"ModuleNotFoundError", "ImportError", "No module named"})) {
    if (Has(last, {"heed_live"})) {
      return {"import_error", "heed_live.py must lie beside the program"};
    }
    return {"import_error", "install the module, or run another interpreter"};
  }
  if (Has(last, {"FileNotFoundError", "No such file"})) {
    return {"missing_file", "paths count from the folder in which heed runs"};
  }
  if (Has(last, {"NotImplementedError"})) return {"not_implemented", "write this part first"};
  if (Has(last, {"shape", "size mismatch", "could not be broadcast", "must match the size",
                 "dimension", "Sizes of tensors"})) {
    return {"shape_error", "do its sizes follow the settings of the input file?"};
  }
  return {"exception", "let it print to stderr what it was doing"};
}

// A signal that ended the program, also when sh reports it for a child: 0 when none did.
int SignalOf(const ProcessResult& run) {
  if (run.signal != 0) return run.signal;
  const int signal = run.exit_code - 128;
  const int crashes[] = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM};
  return std::ranges::find(crashes, signal) == std::end(crashes) ? 0 : signal;
}

}  // namespace

Result<LiveProgram> LiveProgram::Create(LiveCommand command) {
  HEED_ASSIGN(ScratchFolder folder, ScratchFolder::Create());
  return LiveProgram(std::move(command), std::move(folder));
}

tl::unexpected<Error> LiveProgram::Failure(const std::string& mode, const std::string& kind,
                                           const std::string& what, const std::string& hint) const {
  return BadRequest("--run " + Quoted(command_.line),
                    fmt::format("{} in mode {}: {}", kind, mode, what), "", hint);
}

std::string LiveProgram::PathOf(const char* what, size_t number) const {
  return (fs::path(folder_.path()) / fmt::format("{}-{}.safetensors", what, number)).string();
}

Status LiveProgram::Write(const LiveQuestion& question, size_t number) const {
  std::error_code none_there;
  fs::remove(PathOf("answer", number), none_there);
  TensorList tensors;
  tensors.Add("x", {question.attention.B, question.attention.T, question.attention.qkv.in},
              question.attention.x);
  tensors.Add(question.attention.qkv);
  tensors.Add(question.attention.proj);
  const AttentionContext& context = question.context;
  const int64_t D = question.attention.settings.head_dim;
  for (const HeadGain* norm : {&context.q_norm, &context.k_norm}) {
    if (!norm->values.empty()) tensors.Add(norm->name + ".weight", {D}, OneHead(norm->values, D));
    if (!norm->bias.empty()) tensors.Add(norm->name + ".bias", {D}, OneHead(norm->bias, D));
  }
  if (context.Padded()) {
    const std::vector<int64_t>& mask = context.attention_mask;
    tensors.Add("attention_mask", {question.attention.B, question.attention.T},
                {mask.begin(), mask.end()});
  }
  return WriteSafetensors(PathOf("question", number), tensors.list(), MetadataOf(question),
                          /*overwrite=*/true);
}

Result<ProcessResult> LiveProgram::RunOn(size_t count) {
  ++runs_;
  ProcessRequest request{.arguments = {"/bin/sh", "-c", command_.line + " \"$@\"", "sh"},
                         .timeout_s = command_.timeout_s * static_cast<double>(count),
                         .stop = command_.stop};
  for (size_t i = 0; i < count; ++i) {
    request.arguments.push_back(PathOf("question", i));
    request.arguments.push_back(PathOf("answer", i));
  }
  return RunProcess(request);
}

Status LiveProgram::AskAhead(std::vector<LiveQuestion> questions) {
  ahead_.clear();
  for (size_t i = 0; i < questions.size(); ++i) HEED_TRY(Write(questions[i], i));
  if (questions.empty()) return {};
  HEED_TRY(RunOn(questions.size()).map([](const ProcessResult&) {}));
  for (size_t i = 0; i < questions.size(); ++i) {
    Result<LiveAnswer> answer = Read(questions[i], i);
    if (answer) ahead_.emplace_back(std::move(questions[i]), std::move(*answer));
  }
  return {};
}

Result<LiveAnswer> LiveProgram::Ask(const LiveQuestion& question) {
  for (const auto& [asked, answer] : ahead_) {
    if (IsSame(asked, question)) return answer;
  }
  HEED_TRY(Write(question, 0));
  HEED_ASSIGN(const ProcessResult run, RunOn(1));
  const std::string& mode = question.mode;
  const std::string last = LastLine(run.err);
  if (run.timed_out) {
    return Failure(mode, "time_out", fmt::format("no end after {:g} s", command_.timeout_s),
                   "--timeout SECONDS gives it longer");
  }
  if (run.wrote_too_much) {
    return Failure(mode, "too_much_output", "more than 64 MiB on stdout or stderr",
                   "the answer belongs into the output file");
  }
  if (const int signal = SignalOf(run); signal != 0) {
    return Failure(mode, "crash",
                   fmt::format("signal {} ({}){}{}", signal, strsignal(signal),
                               last.empty() ? "" : ", after: ", last),
                   "run it by hand under a debugger");
  }
  if (run.exit_code != 0) {
    const Failed failed = KindOf(run.exit_code, last);
    return Failure(
        mode, failed.kind,
        last.empty() ? fmt::format("exit code {} and nothing on stderr", run.exit_code) : last,
        failed.hint);
  }
  return Read(question, 0);
}

Result<LiveAnswer> LiveProgram::Read(const LiveQuestion& question, size_t number) const {
  const std::string path = PathOf("answer", number), &mode = question.mode;
  if (!fs::exists(path)) {
    return Failure(mode, "no_output", "it ended well and wrote no file",
                   "its last argument is the file to write y [B, T, n_embd] to");
  }
  const Result<TensorFile> file = TensorFile::Open(path);
  if (!file) return Failure(mode, "bad_output", file.error().Message());
  Result<std::vector<TheirTensor>> theirs =
      ReadAttentionResults(*file, "the answer", question.attention);
  if (!theirs) return Failure(mode, "wrong_output", theirs.error().Message());
  for (TheirTensor& tensor : *theirs) {
    BlankPadding(question.attention, question.context, tensor.stage, &tensor.values);
  }
  if (theirs->back().name != "y") {
    return Failure(mode, "wrong_output", "no tensor \"y\"", "y is [B, T, n_embd]");
  }
  LiveAnswer answer{std::move(*theirs), {}};
  if (const auto modes = file->settings().find("modes"); modes != file->settings().end()) {
    std::istringstream words(modes->second);
    for (std::string word; words >> word;) answer.modes.insert(word);
  }
  return answer;
}

}  // namespace heed
