#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/parallel.h"
#include "base/plural.h"
#include "base/quote.h"
#include "baseline/counting.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "data/adder.h"
#include "data/dataset.h"
#include "data/stories.h"
#include "infer/generate.h"
#include "io/file.h"
#include "model/folder.h"
#include "report/format.h"
#include "report/summary.h"
#include "train/presets.h"
#include "train/trainer.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.toml";
// What a run leaves in its folder, besides the model.
constexpr const char* kRunFiles[] = {"metrics.jsonl",  "samples.json",   "loss.svg",    "loss.png",
                                     "perplexity.svg", "perplexity.png", "report.html", "report.md",
                                     "report.csv",     kConfigFile};
constexpr const char* kRunFolders[] = {"checkpoint", "best", "nonfinite"};
// Characters of a sample at an evaluation.
constexpr int64_t kSampleTokens = 120;

struct TrainInputs {
  std::vector<std::string> data;
  std::string out;
  std::string preset;
  std::string recipe;
  std::string init;
  std::string resume;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("out", self.out, "folder of the run");
    visit("resume", self.resume, "folder of a run to go on with");
    visit("preset", self.preset, "named size; other options change it");
    visit("recipe", self.recipe, "fast: parts and settings that learn a text soonest");
    visit("init", self.init, "folder of a model to start from, in place of random weights");
    visit("data", self.data, "text file or folder, builtin:stories or builtin:adder");
  }
};

const std::vector<std::string_view> kModelFields = {"model",
                                                    "n_layer",
                                                    "n_head",
                                                    "n_kv_head",
                                                    "n_embd",
                                                    "head_dim",
                                                    "n_inner",
                                                    "block_size",
                                                    "position",
                                                    "rope_theta",
                                                    "rope_pairing",
                                                    "rotary_dim",
                                                    "rope_first_position",
                                                    "norm",
                                                    "norm_eps",
                                                    "mlp",
                                                    "bias",
                                                    "tied",
                                                    "dropout",
                                                    "sliding_window"};

// What of a model's settings may differ from those of --init.
constexpr std::string_view kInitFields[] = {"block_size", "dropout"};
// All that counting an n-gram model asks for.
const std::vector<std::string_view> kCountedModelFields = {"model", "block_size"};
const std::vector<std::string_view> kCountingFields = {
    "model",      "vocab_size", "tokenizer", "val_fraction", "block_size",
    "batch_size", "eval_iters", "order",     "smoothing",    "add_k"};

// All that a run is made from.
struct TrainSpec {
  TrainInputs inputs;
  std::vector<std::string> arguments;
  ModelConfig model;
  TrainSettings train;
  NgramSettings ngram;
  uint64_t seed = 0;

  void Bind(Options& options) {
    options.BindArguments("[DATA...]", "text files and folders, builtin:stories or builtin:adder",
                          &arguments);
    options.Bind("Run", inputs);
    options.Bind("Model", model, kModelFields);
    options.Bind("Training", train);
    options.Bind("N-gram model", ngram);
  }

  std::string Toml() const {
    std::string text =
        fmt::format("# heed train --config {} --out NEW\nseed = {}\n", kConfigFile, seed);
    std::vector<std::string_view> kept = {"data"};
    if (!inputs.preset.empty()) kept.push_back("preset");
    if (!inputs.recipe.empty()) kept.push_back("recipe");
    if (!inputs.init.empty()) kept.push_back("init");
    text += "\n" + ToToml(inputs, kept);
    const bool counted = model.model == ModelKind::kNgram;
    text += "\n" + ToToml(model, counted ? kCountedModelFields : kModelFields);
    text += "\n" + ToToml(train, counted ? kCountingFields : std::vector<std::string_view>{});
    if (counted) text += "\n" + ToToml(ngram);
    return text;
  }
};

// Makes the folder and holds it; refuses one that holds something, or clears it of an earlier run.
Result<FolderLock> PrepareFolder(const std::string& out, bool overwrite) {
  std::error_code error;
  if (fs::exists(out, error) && !fs::is_directory(out, error)) {
    return Fail(ErrorKind::kIo, out, "a file", "a folder, or nothing", "choose another --out");
  }
  HEED_TRY(MakeFolder(out));
  HEED_ASSIGN(FolderLock lock, FolderLock::Take(out));
  if (!overwrite && !fs::is_empty(out, error)) {
    return BadRequest(out, "a folder that is not empty", "a new folder",
                      "give --overwrite to start over, or --resume to go on");
  }
  for (const char* file : kRunFiles) fs::remove(fs::path(out) / file, error);
  for (const char* folder : kRunFolders) fs::remove_all(fs::path(out) / folder, error);
  return lock;
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return Printable(text);
}

class TrainRun {
 public:
  TrainRun(Session& session, TrainSpec& spec) : session_(session), spec_(spec) {}

  Result<Verdict> Run() {
    for (const auto& [name, value] :
         {std::pair("resume", &spec_.inputs.resume), std::pair("init", &spec_.inputs.init),
          std::pair("preset", &spec_.inputs.preset), std::pair("recipe", &spec_.inputs.recipe)}) {
      if (session_.options.Given(name) && value->empty()) {
        return BadRequest("--" + std::string(name), "an empty name", "a name");
      }
    }
    const bool resumed = !spec_.inputs.resume.empty();
    if (!resumed && spec_.model.model == ModelKind::kNgram) return CountNgram();
    for (const char* field : {"order", "smoothing", "add_k"}) {
      if (!session_.options.Given(field)) continue;
      return BadRequest(field, "given for a model with layers", "--model ngram beside it");
    }
    HEED_TRY(resumed ? PrepareResume() : PrepareNew());
    HEED_ASSIGN(trainer_, Trainer::Create(model_.get(), *data_.tokenizer, *data_.batches,
                                          spec_.train, spec_.seed, spec_.inputs.out));
    if (resumed) {
      HEED_TRY(trainer_->Resume());
    } else {
      HEED_ASSIGN(lock_, PrepareFolder(spec_.inputs.out, session_.globals.overwrite));
      if (spec_.inputs.init.empty()) model_->Initialize(spec_.seed);
    }
    HEED_TRY(WriteConfig());
    Introduce();
    return Train();
  }

 private:
  const Kernels& kernels() const {
    return session_.globals.reference ? ReferenceKernels() : SimdKernels();
  }

  // A resumed run writes it again: what extends the run must be known to the next resume.
  Status WriteConfig() const {
    const std::string toml = spec_.Toml();
    const std::string_view piece = toml;
    return WriteFileAtomically((fs::path(spec_.inputs.out) / kConfigFile).string(), {&piece, 1},
                               /*overwrite=*/true);
  }

  // Settings by the task, the preset and the kind of model, and over them what was given.
  Status Settle() {
    TrainInputs& inputs = spec_.inputs;
    if (inputs.out.empty()) {
      return BadRequest("--out", "nothing", "the folder of the run",
                        "for example --out runs/first");
    }
    std::vector<std::string> data = inputs.data;
    data.insert(data.end(), spec_.arguments.begin(), spec_.arguments.end());
    spec_.seed = static_cast<uint64_t>(session_.globals.seed);
    const ModelKind kind = spec_.model.model;
    ApplyTask(data, &spec_.model, &spec_.train);
    if (!inputs.preset.empty()) {
      HEED_TRY(ApplyPreset(inputs.preset, &spec_.model, &spec_.train));
    }
    if (!inputs.recipe.empty()) {
      HEED_TRY(ApplyRecipe(inputs.recipe, &spec_.model, &spec_.train));
    }
    ApplyKind(kind, &spec_.model);
    HEED_TRY(session_.options.Apply());
    // A curve of few points says little: short runs are evaluated more often.
    if (!session_.options.Given("eval_interval")) {
      const int64_t quarter = std::max<int64_t>(1, spec_.train.max_iters / 4);
      spec_.train.eval_interval = std::min(spec_.train.eval_interval, quarter);
    }
    inputs.data = data;
    return spec_.train.Resolve();
  }

  Status PrepareNew() {
    HEED_TRY(Settle());
    const TrainInputs& inputs = spec_.inputs;
    std::unique_ptr<Tokenizer> tokenizer;
    if (!inputs.init.empty()) {
      for (const std::string_view field : kModelFields) {
        if (!session_.options.Given(field) || std::ranges::count(kInitFields, field) > 0) continue;
        return BadRequest("--init", fmt::format("{} beside it", field), "the model's own sizes",
                          "only block_size and dropout may change");
      }
      for (const char* name : {"tokenizer", "vocab_size"}) {
        if (!session_.options.Given(name)) continue;
        return BadRequest("--init", fmt::format("{} beside it", name),
                          "the model's own vocabulary");
      }
      HEED_ASSIGN(LoadedModel loaded, LoadModel(inputs.init, kernels()));
      if (!loaded.tokenizer) return tl::make_unexpected(loaded.tokenizer.error());
      tokenizer = std::move(*loaded.tokenizer);
      HEED_TRY(TakeModel(std::move(loaded.model)));
    }
    HEED_TRY(ReadData(std::move(tokenizer)));
    if (model_ != nullptr) return {};
    spec_.model.block_size = data_.batches->block();
    spec_.model.vocab_size = data_.tokenizer->vocab_size();
    HEED_ASSIGN(model_, Gpt::Create(spec_.model, kernels()));
    spec_.model = model_->config();
    return {};
  }

  // The model of --init, with the context and dropout that were asked for.
  Status TakeModel(std::unique_ptr<Gpt> model) {
    const ModelConfig& own = model->config();
    const auto given = [&](const char* field) { return session_.options.Given(field); };
    const int64_t block_size = given("block_size") ? spec_.model.block_size : own.block_size;
    const double dropout = given("dropout") ? spec_.model.dropout : own.dropout;
    model_ = std::move(model);
    if (block_size != own.block_size || dropout != own.dropout) {
      HEED_ASSIGN(model_, WithContext(*model_, block_size, dropout, spec_.seed));
    }
    spec_.model = model_->config();
    return {};
  }

  // Counts in place of training; the folder is that of any run, but for the checkpoint.
  Result<Verdict> CountNgram() {
    std::vector<std::string_view> allowed = kCountingFields;
    allowed.insert(allowed.end(), {"out", "data", "json", "quiet", "threads", "seed", "overwrite"});
    const std::string other = session_.options.FirstGivenBut(allowed);
    if (!other.empty()) {
      return BadRequest(other, "given beside --model ngram", "settings of counting",
                        "counts have no layers and no updates");
    }
    HEED_TRY(spec_.ngram.Validate());
    HEED_TRY(Settle());
    HEED_TRY(ReadData(nullptr));
    const auto* text = dynamic_cast<const TextBatches*>(data_.batches.get());
    if (text == nullptr) {
      return BadRequest("DATA", "a task that is not text", "text files or builtin:stories");
    }
    HEED_ASSIGN(lock_, PrepareFolder(spec_.inputs.out, session_.globals.overwrite));
    HEED_TRY(WriteConfig());
    MetricsRow last;
    std::string metrics;
    const CountingSettings counting{spec_.train.batch_size, spec_.train.eval_iters, spec_.seed};
    HEED_ASSIGN(const Ngram model,
                CountText(*text, spec_.ngram, counting, [&](const MetricsRow& row) -> Status {
                  metrics += MetricsLine(row);
                  last = row;
                  return ShowEvaluation(row);
                }));
    const std::string_view piece = metrics;
    HEED_TRY(WriteFileAtomically((fs::path(spec_.inputs.out) / "metrics.jsonl").string(),
                                 {&piece, 1}, /*overwrite=*/true));
    HEED_TRY(model.Save(spec_.inputs.out, *data_.tokenizer, /*overwrite=*/true));
    session_.terminal.Note(model.Description());
    return ReportCounts(last);
  }

  Result<Verdict> ReportCounts(const MetricsRow& last) {
    nlohmann::ordered_json json = {{"out", spec_.inputs.out},
                                   {"train_loss", last.train_loss},
                                   {"perplexity", last.perplexity}};
    if (last.val_loss) {
      json["val_loss"] = *last.val_loss;
      json["val_perplexity"] = *last.val_perplexity;
    }
    json["tokens"] = last.tokens;
    json["elapsed_s"] = last.elapsed_s;
    HEED_TRY(session_.terminal.Document(DocumentText(json)));
    return SayEnd(fmt::format("{} token{} counted", FormatCount(last.tokens), Plural(last.tokens)),
                  last, "training loss");
  }

  // The last line: what was done, what came of it, and the loss that was seen on the way.
  Result<Verdict> SayEnd(const std::string& done, const MetricsRow& last, const char* train_loss) {
    std::string text =
        fmt::format("{}: {} in {}, ", spec_.inputs.out, done, FormatDuration(last.elapsed_s));
    if (val_loss_) {
      text += HeldOutText(*val_loss_) +
              (val_iter_ == last.iter ? "" : " at update " + FormatCount(val_iter_)) + ", ";
    }
    text += fmt::format("{} {}", train_loss, FormatFigure(last.train_loss));
    HEED_TRY(session_.terminal.Say(Wrap(text, session_.terminal.text_width(), 0) + "\n"));
    return Verdict::kDone;
  }

  Status PrepareResume() {
    const std::string folder = spec_.inputs.resume;
    const std::string config = (fs::path(folder) / kConfigFile).string();
    std::error_code error;
    if (!fs::exists(config, error)) {
      return Fail(ErrorKind::kIo, folder, "no config.toml", "the folder of a run",
                  "start one with heed train DATA --out " + folder);
    }
    HEED_ASSIGN(lock_, FolderLock::Take(folder));
    HEED_TRY(
        AllowOnly({"resume", "max_iters", "lr_decay_iters"}, "a resumed run keeps its settings"));
    if (!spec_.arguments.empty()) {
      return BadRequest("--resume", "'" + spec_.arguments[0] + "' beside it", "the run's own data");
    }
    const TrainSettings asked = spec_.train;
    TrainSpec saved;
    GlobalOptions globals;
    Options options;
    saved.Bind(options);
    options.Bind("Everywhere", globals, {"seed"});
    HEED_TRY(options.Parse({"--config", config}));
    spec_ = std::move(saved);
    spec_.seed = static_cast<uint64_t>(globals.seed);
    spec_.inputs.out = folder;
    spec_.inputs.resume = folder;
    if (session_.options.Given("max_iters")) spec_.train.max_iters = asked.max_iters;
    if (session_.options.Given("lr_decay_iters")) {
      spec_.train.lr_decay_iters = asked.lr_decay_iters;
    }
    HEED_TRY(spec_.train.Resolve());
    HEED_ASSIGN(LoadedModel loaded, LoadModel(folder, kernels()));
    if (!loaded.tokenizer) return tl::make_unexpected(loaded.tokenizer.error());
    model_ = std::move(loaded.model);
    spec_.model = model_->config();
    return ReadData(std::move(*loaded.tokenizer));
  }

  Status AllowOnly(std::vector<std::string_view> allowed, const char* why) const {
    for (const std::string_view global : {"json", "quiet", "threads", "reference"}) {
      allowed.push_back(global);
    }
    const std::string other = session_.options.FirstGivenBut(allowed);
    if (other.empty()) return {};
    return BadRequest(other, "given beside --resume", "only --max-iters and --lr-decay-iters", why);
  }

  Status ReadData(std::unique_ptr<Tokenizer> tokenizer) {
    std::vector<std::string>& paths = spec_.inputs.data;
    DataOptions options;
    options.sources = paths;
    options.tokenizer = spec_.train.tokenizer;
    options.vocab_size = spec_.train.vocab_size;
    options.val_fraction = spec_.train.val_fraction;
    options.block_size = spec_.model.block_size;
    HEED_ASSIGN(data_, OpenData(options, std::move(tokenizer)));
    adder_ = dynamic_cast<const AdderBatches*>(data_.batches.get());
    // A run can be resumed from any folder.
    for (std::string& path : paths) {
      if (!IsBuiltin(path)) path = fs::absolute(path).lexically_normal().string();
    }
    if (spec_.train.sample_prompt.empty()) spec_.train.sample_prompt = DefaultPrompt();
    HEED_TRY(data_.tokenizer->Encode(spec_.train.sample_prompt, {"--sample-prompt"}));
    return {};
  }

  // A beginning that the vocabulary can spell: the stories' own, or a new line, as nanoGPT has it.
  std::string DefaultPrompt() const {
    if (dynamic_cast<const StoryBatches*>(data_.batches.get()) != nullptr) {
      return std::string(kStoryPrompts.front());
    }
    return data_.tokenizer->Encode("\n") ? "\n" : std::string(data_.tokenizer->TokenBytes(0));
  }

  void Tell(const std::string& line) const {
    session_.terminal.Note(Wrap(line, session_.terminal.note_width(), 10));
  }

  void Introduce() {
    const ModelConfig& c = model_->config();
    Tell(fmt::format(
        "model     {} parameters: {} layer{}, {} head{}{}, width {}, context {}, vocabulary {}",
        FormatCount(model_->parameters().elements()), c.n_layer, Plural(c.n_layer), c.n_head,
        Plural(c.n_head),
        c.n_kv_head == c.n_head ? "" : fmt::format(" ({} key/value)", c.n_kv_head), c.n_embd,
        c.block_size, c.vocab_size));
    Tell(fmt::format("data      {} training and {} held-out tokens",
                     FormatCount(data_.batches->train_tokens()),
                     FormatCount(data_.batches->val_tokens())));
    if (trainer_->iteration() == 0) {
      Tell(fmt::format("expect    a first loss near ln({}) = {}{}", c.vocab_size,
                       FormatFigure(std::log(static_cast<double>(c.vocab_size))),
                       trainer_->floor()
                           ? fmt::format(", and never less than {} held out",
                                         FormatFigure(trainer_->floor()->nats_per_token))
                           : ""));
    }
    Tell(fmt::format("memory    {} planned, {} thread{}, {}, {}",
                     FormatBytes(static_cast<double>(trainer_->planned_bytes())), NumThreads(),
                     Plural(NumThreads()), session_.globals.reference ? "reference" : SimdTarget(),
                     NameOf(spec_.train.dtype)));
    const TrainSettings& t = spec_.train;
    Tell(fmt::format(
        "settings  {} update{} of {} x {} tokens, learning rate {} to {}, positions {}",
        FormatCount(t.max_iters), Plural(t.max_iters), t.batch_size * t.grad_accum, c.block_size,
        FormatFigure(t.learning_rate), FormatFigure(t.min_lr), NameOf(c.position)));
    if (!spec_.inputs.resume.empty()) IntroduceResume();
  }

  void IntroduceResume() {
    const TrainSettings& t = spec_.train;
    std::string line =
        fmt::format("resume    after {} update{}", FormatCount(trainer_->iteration()),
                    Plural(trainer_->iteration()));
    if (trainer_->iteration() >= t.max_iters) {
      line += "; none is left, --max-iters N goes further";
    } else if (t.max_iters > t.lr_decay_iters) {
      line += fmt::format(
          "; from update {} on at the least learning rate, --lr-decay-iters N stretches its fall",
          FormatCount(t.lr_decay_iters));
    }
    Tell(line);
  }

  Result<Verdict> Train() {
    InterruptGuard guard;
    Progress progress(session_.terminal, "training", "it", spec_.train.max_iters);
    progress.StartAt(trainer_->iteration());
    TrainEvents events;
    events.should_stop = [&guard] { return guard.interrupted(); };
    events.on_checkpoint = [&](int64_t iteration) {
      if (session_.terminal.quiet()) return;
      // A bar may stand in its line.
      guard.SetLastWords(
          fmt::format("{}stopped at once; the last checkpoint is of {} update{}, {}\n",
                      session_.terminal.err_is_terminal() ? "\n" : "", FormatCount(iteration),
                      Plural(iteration), GoOnWith()));
    };
    events.on_iteration = [&](const MetricsRow& row) {
      progress.Update(row.iter, {{"loss", FormatFigure(row.train_loss)}});
    };
    events.on_evaluation = [&](const MetricsRow& row) {
      progress.Erase();
      return ShowEvaluation(row);
    };
    HEED_ASSIGN(const TrainOutcome outcome, trainer_->Run(events));
    if (outcome.stopped) {
      progress.Erase();
      session_.terminal.Note(fmt::format("stopped after {} update{}; {}",
                                         FormatCount(trainer_->iteration()),
                                         Plural(trainer_->iteration()), GoOnWith()));
    } else {
      progress.Finish();
    }
    return Report(outcome);
  }

  std::string GoOnWith() const {
    return fmt::format("go on with: {} train --resume {}", ShellWord(std::string(session_.program)),
                       ShellWord(spec_.inputs.out));
  }

  Status ShowEvaluation(const MetricsRow& row) {
    val_loss_ = row.val_loss;
    val_iter_ = row.iter;
    std::string line = fmt::format("{:>6}  training {}", row.iter, FormatFigure(row.train_loss));
    if (row.val_loss) {
      line += fmt::format("  held-out {} (perplexity {})", FormatFigure(*row.val_loss),
                          FormatFigure(*row.val_perplexity));
    }
    if (model_ == nullptr) {
      line += fmt::format("  after {} token{}", FormatCount(row.tokens), Plural(row.tokens));
    } else if (adder_ != nullptr) {
      HEED_ASSIGN(right_, ScoreSums());
      line += fmt::format("  sums right {}/{}", right_, adder_->HeldOut().size());
    } else {
      HEED_ASSIGN(const std::string sample, DrawSample());
      line += "\n        " + sample;
    }
    session_.terminal.Note(line);
    return {};
  }

  Result<std::string> DrawSample() const {
    SampleRequest request;
    HEED_ASSIGN(request.prompt, data_.tokenizer->Encode(spec_.train.sample_prompt));
    request.sampling.temperature = 0.8;
    request.seed = spec_.seed;
    GenerateOptions options;
    options.max_tokens = kSampleTokens;
    HEED_ASSIGN(const std::vector<Sample> samples,
                Generate(*model_, *data_.tokenizer, {&request, 1}, options));
    const std::string text = OneLine(spec_.train.sample_prompt + samples[0].text);
    return Wrap(text, session_.terminal.note_width() - 8, 8);
  }

  // How many held-out sums greedy decoding gets right in every digit.
  Result<int64_t> ScoreSums() const {
    const std::vector<AdderBatches::Problem> problems = adder_->HeldOut();
    std::vector<SampleRequest> requests;
    for (const AdderBatches::Problem& problem : problems) {
      requests.push_back({problem.prompt, {.temperature = 0}});
    }
    GenerateOptions options;
    options.max_tokens = static_cast<int64_t>(problems.front().answer.size());
    HEED_ASSIGN(const std::vector<Sample> samples,
                Generate(*model_, *data_.tokenizer, requests, options));
    int64_t right = 0;
    for (size_t i = 0; i < problems.size(); ++i) right += samples[i].tokens == problems[i].answer;
    return right;
  }

  Result<Verdict> Report(const TrainOutcome& outcome) {
    const MetricsRow& last = outcome.last;
    if (session_.terminal.json()) {
      nlohmann::ordered_json json = {
          {"out", spec_.inputs.out},       {"iter", trainer_->iteration()},
          {"stopped", outcome.stopped},    {"parameters", model_->parameters().elements()},
          {"train_loss", last.train_loss}, {"perplexity", last.perplexity}};
      if (val_loss_) {
        json["val_loss"] = *val_loss_;
        json["val_perplexity"] = std::exp(*val_loss_);
        json["best_val_loss"] = outcome.best_val_loss;
      }
      if (trainer_->floor()) {
        json["val_floor"] = trainer_->floor()->nats_per_token;
        json["val_floor_error"] = trainer_->floor()->standard_error;
      }
      if (adder_ != nullptr) {
        json["sums_right"] = right_;
        json["sums"] = adder_->HeldOut().size();
      }
      json["tokens"] = last.tokens;
      json["tokens_per_second"] = last.tokens_per_second;
      json["elapsed_s"] = last.elapsed_s;
      HEED_TRY(session_.terminal.Document(DocumentText(json)));
      return Verdict::kDone;
    }
    return SayEnd(fmt::format("{} update{}", FormatCount(trainer_->iteration()),
                              Plural(trainer_->iteration())),
                  last, "training loss (last update)");
  }

  Session& session_;
  TrainSpec& spec_;
  FolderLock lock_;
  DataSet data_;
  const AdderBatches* adder_ = nullptr;  // when the task is addition: it can be scored
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<double> val_loss_;
  int64_t val_iter_ = 0;  // update at which it was measured
  int64_t right_ = 0;
};

// The options that a name stands for: "--position rope --batch-size 16 ...".
std::string StandsFor(const std::function<void(ModelConfig*, TrainSettings*)>& apply) {
  using Texts = std::vector<std::pair<std::string, std::string>>;
  const auto texts_of = [](const ModelConfig& model, const TrainSettings& train) {
    Texts texts;
    const auto add = [&](std::string_view name, const auto& value, std::string_view) {
      Option option;
      option.name = name;
      texts.emplace_back(option.Flag(), TomlText(value));
    };
    ModelConfig::Fields(model, add);
    TrainSettings::Fields(train, add);
    return texts;
  };
  ModelConfig model;
  TrainSettings train;
  const Texts before = texts_of(model, train);
  apply(&model, &train);
  const Texts after = texts_of(model, train);
  std::string options;
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i] == before[i]) continue;
    options += (options.empty() ? "" : " ") + after[i].first + " " + after[i].second;
  }
  std::erase(options, '"');
  return options;
}

std::string SettingsOfNames() {
  const auto of_task = [](const char* name) {
    return StandsFor(
        [&](ModelConfig* model, TrainSettings* train) { ApplyTask({name}, model, train); });
  };
  return "Some names bring settings, which options change: builtin:stories " +
         of_task("builtin:stories") + "; builtin:adder " + of_task("builtin:adder") +
         "; --recipe fast " + StandsFor([](ModelConfig* model, TrainSettings* train) {
           [[maybe_unused]] const Status known = ApplyRecipe("fast", model, train);
         }) +
         ".";
}

}  // namespace

Command TrainCommand() {
  Command command;
  command.name = "train";
  command.summary = "train a GPT on text";
  command.explanation =
      "Trains from nothing, or from --init MODEL, on text files, folders or a built-in task, and "
      "leaves a model's folder with its curves (metrics.jsonl), settings (config.toml) and "
      "checkpoint. The text's tail is held out; both parts need block_size + 1 tokens. Ctrl-C "
      "saves; --resume FOLDER goes on as if never stopped. Presets: femto, pico, gpt-nano, "
      "gpt-micro, gpt-mini, gopher-44m, gpt2 and larger, shakespeare-cpu, shakespeare.";
  command.more = SettingsOfNames;
  command.example =
      "heed train input.txt --preset shakespeare-cpu --out runs/first\n"
      "heed train --resume runs/first\n"
      "heed train builtin:adder --preset gpt-nano --out runs/adder";
  command.takes_reference = true;
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto spec = std::make_shared<TrainSpec>();
    spec->Bind(options);
    return [spec](Session& session) { return TrainRun(session, *spec).Run(); };
  };
  return command;
}

}  // namespace heed
