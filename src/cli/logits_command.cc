#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/plural.h"
#include "cli/command.h"
#include "cli/json.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "optim/adamw.h"
#include "report/format.h"
#include "train/settings.h"

namespace heed {
namespace {

struct LogitsSettings {
  std::string text;
  std::vector<std::string> tokens;
  std::string tokens_file;
  std::string out;
  bool grad = false;
  int64_t steps = 0;
  bool no_bos = false;
  Arithmetic dtype = Arithmetic::kF32;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("text", self.text, "text to read");
    visit("tokens", self.tokens, "token ids to read: 1,2,3");
    visit("tokens_file", self.tokens_file,
          "safetensors with tokens [B, T], and targets [B, T] (-1 is ignored) for a loss");
    visit("out", self.out, "safetensors file to write");
    visit("grad", self.grad, "write the gradient of the loss for every parameter");
    visit("steps", self.steps, "AdamW updates to make on the batch");
    visit("no_bos", self.no_bos, "leave the vocabulary's start token out of --text");
    visit("dtype", self.dtype, "arithmetic of products; sums and weights stay f32");
  }
};

const std::vector<std::string_view> kOptimizerFields = {"learning_rate", "beta1", "beta2",
                                                        "weight_decay", "grad_clip"};
constexpr int64_t kMostSteps = 1000000;

struct Tokens {
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens, targets;  // [B, T]; targets may be empty
};

Result<std::vector<int32_t>> Narrow(const std::vector<int64_t>& values, int64_t least, int64_t most,
                                    const std::string& where) {
  std::vector<int32_t> out;
  out.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < least || values[i] > most) {
      return Fail(ErrorKind::kFormat, fmt::format("{} [{}]", where, i),
                  fmt::format("{}", values[i]), fmt::format("an id from {} to {}", least, most));
    }
    out.push_back(static_cast<int32_t>(values[i]));
  }
  return out;
}

Result<Tokens> TokensOfFile(const std::string& path, int64_t vocab_size) {
  HEED_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  HEED_ASSIGN(const std::vector<int64_t> ids, file.Integers("tokens"));
  const std::vector<int64_t>& shape = file.Find("tokens")->shape;
  if (shape.empty() || shape.size() > 2) {
    return Fail(ErrorKind::kFormat, path + ": tokens",
                fmt::format("shape [{}]", fmt::join(shape, ", ")), "[B, T] or [T]");
  }
  Tokens t{shape.size() == 2 ? shape[0] : 1, shape.back()};
  HEED_ASSIGN(t.tokens, Narrow(ids, 0, vocab_size - 1, path + ": tokens"));
  if (const TensorEntry* entry = file.Find("targets"); entry != nullptr) {
    if (entry->shape != shape) {
      return Fail(ErrorKind::kFormat, path + ": targets",
                  fmt::format("shape [{}]", fmt::join(entry->shape, ", ")),
                  fmt::format("that of tokens, [{}]", fmt::join(shape, ", ")));
    }
    HEED_ASSIGN(const std::vector<int64_t> targets, file.Integers("targets"));
    HEED_ASSIGN(t.targets, Narrow(targets, -1, vocab_size - 1, path + ": targets"));
  }
  return t;
}

Result<std::vector<int64_t>> ParseIds(const std::vector<std::string>& texts) {
  std::vector<int64_t> ids;
  for (const std::string& text : texts) {
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      int64_t id = 0;
      HEED_TRY(ParseField("--tokens", text.substr(at, end - at), &id));
      ids.push_back(id);
      at = end + 1;
    }
  }
  return ids;
}

Result<Tokens> ReadTokens(const LogitsSettings& s, const LoadedModel& loaded) {
  const int given = !s.text.empty() + !s.tokens.empty() + !s.tokens_file.empty();
  if (given != 1) {
    return BadRequest("--text, --tokens, --tokens-file", fmt::format("{} of them", given),
                      "one of them");
  }
  const int64_t V = loaded.model->config().vocab_size;
  if (!s.tokens_file.empty()) return TokensOfFile(s.tokens_file, V);
  Tokens t{1};
  if (!s.tokens.empty()) {
    HEED_ASSIGN(const std::vector<int64_t> ids, ParseIds(s.tokens));
    HEED_ASSIGN(t.tokens, Narrow(ids, 0, V - 1, "--tokens"));
  } else {
    if (!loaded.tokenizer) return tl::make_unexpected(loaded.tokenizer.error());
    const Tokenizer& tokenizer = **loaded.tokenizer;
    HEED_ASSIGN(t.tokens, tokenizer.Encode(s.text, {"--text"}));
    if (!s.no_bos) t.tokens = tokenizer.WithBos(std::move(t.tokens));
  }
  t.T = static_cast<int64_t>(t.tokens.size());
  return t;
}

class LogitsRun {
 public:
  LogitsRun(Session& session, const LogitsSettings& settings, const TrainSettings& optimizer)
      : session_(session), settings_(settings), optimizer_(optimizer) {}

  Result<Verdict> Run(const std::vector<std::string>& models) {
    if (models.size() != 1) {
      return BadRequest("MODEL", fmt::format("{} folders", models.size()), "one model's folder");
    }
    if (settings_.out.empty()) return BadRequest("--out", "nothing", "a safetensors file to write");
    HEED_TRY(optimizer_.Resolve());
    HEED_ASSIGN(
        LoadedModel loaded,
        LoadModel(models[0], session_.globals.reference ? ReferenceKernels() : SimdKernels(), "",
                  settings_.steps > 0 ? Weights::kOwned : Weights::kInPlace));
    HEED_ASSIGN(tokens_, ReadTokens(settings_, loaded));
    model_ = std::move(loaded.model);
    model_->set_arithmetic(settings_.dtype);
    HEED_TRY(CheckSizes());
    counted_ = std::count_if(tokens_.targets.begin(), tokens_.targets.end(),
                             [](int32_t target) { return target >= 0; });
    const bool backward = settings_.grad || settings_.steps > 0;
    HEED_ASSIGN(activations_, Activations::Create(*model_, tokens_.B, tokens_.T, backward));
    if (backward) HEED_TRY(model_->parameters().AllocateGradients());
    Forward();
    if (settings_.grad) Gradients();
    if (settings_.steps > 0) HEED_TRY(Train());
    HEED_TRY(WriteSafetensors(settings_.out, outputs_, {}, session_.globals.overwrite));
    return Report();
  }

 private:
  Status CheckSizes() const {
    const int64_t block = model_->config().block_size;
    if (tokens_.T < 1 || tokens_.T > block || tokens_.B < 1) {
      return BadRequest("tokens", fmt::format("{} x {}", tokens_.B, tokens_.T),
                        fmt::format("at least 1 x 1 and at most block_size = {} positions", block));
    }
    if (settings_.steps < 0 || settings_.steps > kMostSteps) {
      return BadRequest("--steps", fmt::format("{}", settings_.steps), "0 to 1000000");
    }
    const bool counted = std::any_of(tokens_.targets.begin(), tokens_.targets.end(),
                                     [](int32_t target) { return target >= 0; });
    if ((settings_.grad || settings_.steps > 0) && !counted) {
      return BadRequest(settings_.grad ? "--grad" : "--steps", "no targets",
                        "--tokens-file with targets that are not all -1");
    }
    return {};
  }

  // A float32 tensor of the output, whose numbers this object keeps.
  float* Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    kept_.push_back(std::make_unique<std::vector<float>>(static_cast<size_t>(n)));
    outputs_.push_back({name, DType::kF32, shape, kept_.back()->data()});
    return kept_.back()->data();
  }

  void Forward() {
    const Pass pass = model_->NewPass(tokens_.B, tokens_.T);
    float* logits = Add("logits", {tokens_.B, tokens_.T, model_->config().vocab_size});
    const float* x = model_->Forward(pass, tokens_.tokens.data(), activations_.get());
    model_->Logits(pass, x, pass.rows(), activations_.get(), logits);
    if (counted_ == 0) return;
    loss_ = model_->Loss(pass, tokens_.tokens.data(), tokens_.targets.data(), activations_.get()) /
            static_cast<double>(counted_);
    *Add("loss", {1}) = static_cast<float>(*loss_);
  }

  double LossAndBackward() {
    Pass pass = model_->NewPass(tokens_.B, tokens_.T);
    pass.training = true;
    pass.dropout = 0;
    return model_->LossAndBackward(pass, tokens_.tokens.data(), tokens_.targets.data(),
                                   1.0f / static_cast<float>(counted_), activations_.get()) /
           static_cast<double>(counted_);
  }

  void Gradients() {
    LossAndBackward();
    for (const Parameter& p : model_->parameters().all()) {
      std::copy_n(p.grad, p.elements, Add("grad." + p.file_name, p.shape));
    }
  }

  Status Train() {
    HEED_ASSIGN(const std::unique_ptr<Adamw> adamw, Adamw::Create(&model_->parameters()));
    float* losses = Add("losses", {settings_.steps});
    float* norms = Add("grad_norms", {settings_.steps});
    for (int64_t step = 0; step < settings_.steps; ++step) {
      losses[step] = static_cast<float>(LossAndBackward());
      const double norm = GradientNorm(model_->kernels(), model_->parameters());
      norms[step] = static_cast<float>(norm);
      adamw->Step(model_->kernels(), optimizer_.adamw(), optimizer_.learning_rate, norm);
    }
    for (const Parameter& p : model_->parameters().all()) {
      outputs_.push_back({"after." + p.file_name, DType::kF32, p.shape, p.data});
    }
    return {};
  }

  Result<Verdict> Report() {
    nlohmann::ordered_json json = {{"out", settings_.out},
                                   {"shape", {tokens_.B, tokens_.T, model_->config().vocab_size}},
                                   {"tensors", outputs_.size()}};
    if (loss_) json["loss"] = *loss_;
    HEED_TRY(session_.terminal.Document(DocumentText(json)));
    HEED_TRY(session_.terminal.Say(
        fmt::format("{}: logits [{}, {}, {}]{}, {} tensor{}\n", settings_.out, tokens_.B, tokens_.T,
                    model_->config().vocab_size, loss_ ? ", loss " + FormatFigure(*loss_) : "",
                    outputs_.size(), Plural(std::ssize(outputs_)))));
    return Verdict::kDone;
  }

  Session& session_;
  const LogitsSettings& settings_;
  TrainSettings optimizer_;
  Tokens tokens_;
  int64_t counted_ = 0;
  std::optional<double> loss_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<Activations> activations_;
  std::vector<std::unique_ptr<std::vector<float>>> kept_;
  std::vector<TensorToWrite> outputs_;
};

}  // namespace

Command LogitsCommand() {
  Command command;
  command.name = "logits";
  command.summary = "a model's numbers on given tokens: logits, loss, gradients, updates";
  command.explanation =
      "Writes logits [B, T, V] in float32 and, where targets are given, the loss [1]; with --grad "
      "grad.NAME for every parameter under its name in the model's file; with --steps N the losses "
      "[N] and grad_norms [N] of N AdamW updates on that batch (each loss is taken before its "
      "update) and the parameters behind them, after.NAME.";
  command.example =
      "heed logits runs/first --text \"To be\" --out logits.safetensors\n"
      "heed logits runs/first --tokens-file in.safetensors --grad --out out.safetensors";
  command.takes_reference = true;
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<LogitsSettings>();
    auto optimizer = std::make_shared<TrainSettings>();
    auto models = std::make_shared<std::vector<std::string>>();
    options.BindArguments("MODEL", "a model: its folder, .gguf or .bin", models.get());
    options.Bind("Logits", *settings);
    options.Bind("Updates", *optimizer, kOptimizerFields);
    return [settings, optimizer, models](Session& session) {
      return LogitsRun(session, *settings, *optimizer).Run(*models);
    };
  };
  return command;
}

}  // namespace heed
