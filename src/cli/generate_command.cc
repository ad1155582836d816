#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/memory.h"
#include "base/plural.h"
#include "baseline/open.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/precision.h"
#include "infer/generate.h"
#include "report/format.h"
#include "text/utf8.h"

namespace heed {
namespace {

struct GenerateSettings {
  std::vector<std::string> prompt;
  std::vector<double> temperature = {0.8};
  int64_t max_tokens = 200;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::string> stop;
  int64_t num_samples = 1;
  bool no_cache = false;
  bool no_bos = false;
  Precision dtype = Precision::kFile;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("prompt", self.prompt, "text to continue");
    visit("temperature", self.temperature, "0 is greedy");
    visit("max_tokens", self.max_tokens, "tokens of a continuation");
    visit("top_k", self.top_k, "keep the k likeliest tokens; 0 for all");
    visit("top_p", self.top_p, "keep the likeliest tokens that reach this probability");
    visit("min_p", self.min_p, "drop tokens below this share of the likeliest one's probability");
    visit("repetition_penalty", self.repetition_penalty, "divide the logits of tokens seen");
    visit("stop", self.stop, "end before this text");
    visit("num_samples", self.num_samples, "samples of each prompt at each temperature");
    visit("no_cache", self.no_cache, "read the whole text anew for each token");
    visit("no_bos", self.no_bos, "leave the vocabulary's start token out");
    visit("dtype", self.dtype, kPrecisionHelp);
  }
};

// One prompt at one temperature, one of several times.
struct Cell {
  size_t prompt;
  double temperature;
  uint64_t seed;
};

constexpr double kMostSamples = 100000;
constexpr int64_t kMostTokens = 1000000000;

Status Check(const GenerateSettings& s) {
  if (s.prompt.empty()) {
    return BadRequest("--prompt", "nothing", "a text to continue",
                      "for example --prompt \"Once upon a time\"");
  }
  if (s.max_tokens < 0 || s.max_tokens > kMostTokens) {
    return BadRequest("--max-tokens", fmt::format("{}", s.max_tokens), "0 to 1000000000");
  }
  const double samples = static_cast<double>(s.prompt.size() * s.temperature.size()) *
                         static_cast<double>(s.num_samples);
  if (s.num_samples < 1 || samples > kMostSamples) {
    return BadRequest("--num-samples", fmt::format("{}", s.num_samples),
                      "a whole number from 1 that makes at most 100000 samples");
  }
  for (const std::string& stop : s.stop) {
    if (stop.empty()) return BadRequest("--stop", "an empty text", "at least one character");
  }
  return {};
}

// Breaks lines of a terminal between words; a word is shown once it has ended.
class WordWrap {
 public:
  explicit WordWrap(int width) : width_(static_cast<size_t>(width)) {}

  // What can be shown after whole characters arrived. Spaces wait for the word behind them, which
  // may begin a line.
  std::string Push(std::string_view text) {
    std::string out;
    for (const char c : text) {
      const bool starts_character = (c & 0xC0) != 0x80;
      if (starts_character && word_.size() >= width_) out += Flush();
      if (c != ' ' && c != '\n') {
        word_ += c;
        continue;
      }
      out += Flush();
      ++spaces_;
      if (c != '\n') continue;
      out += c;
      used_ = spaces_ = 0;
    }
    return out;
  }

 private:
  std::string Flush() {
    if (word_.empty()) return "";
    const size_t columns = TextWidth(word_), end = used_ + spaces_ + columns;
    const bool wraps = used_ > 0 && end > width_;
    used_ = wraps ? columns : end;
    const std::string before = wraps ? "\n" : std::string(spaces_, ' ');
    spaces_ = 0;
    return before + std::exchange(word_, "");
  }

  size_t width_, used_ = 0, spaces_ = 0;
  std::string word_;
};

// Text as it arrives, in whole characters; a line of dashes between samples.
class Stream {
 public:
  Stream(Terminal& terminal, const GenerateSettings& settings, std::span<const Cell> cells)
      : terminal_(terminal),
        settings_(settings),
        cells_(cells),
        wrap_(terminal.out_is_terminal() ? terminal.width() : std::numeric_limits<int>::max()) {}

  std::string Heading(size_t i) const {
    const Cell& cell = cells_[i];
    return fmt::format("{}--- temperature {}{}\n", i > 0 ? "\n" : "",
                       FormatFigure(cell.temperature),
                       cell.temperature > 0 ? fmt::format(", seed {}", cell.seed) : ", greedy");
  }
  Status Begin(size_t i) {
    HEED_TRY(terminal_.Say(Heading(i)));
    return Show(settings_.prompt[cells_[i].prompt]);
  }
  Status Show(std::string_view bytes) { return terminal_.Say(wrap_.Push(splitter_.Push(bytes))); }
  Status End() { return terminal_.Say(wrap_.Push(splitter_.Flush() + "\n")); }

 private:
  Terminal& terminal_;
  const GenerateSettings& settings_;
  std::span<const Cell> cells_;
  Utf8Splitter splitter_;
  WordWrap wrap_;
};

class GenerateRun {
 public:
  GenerateRun(Session& session, const GenerateSettings& settings,
              const std::vector<std::string>& models)
      : session_(session), settings_(settings), models_(models) {}

  Result<Verdict> Run() {
    if (models_.size() != 1) {
      return BadRequest("MODEL", fmt::format("{} folders", models_.size()), "one model's folder");
    }
    UseHugeHeap();
    HEED_ASSIGN(model_, OpenModel(models_[0],
                                  session_.globals.reference ? ReferenceKernels() : SimdKernels(),
                                  WeightsOf(settings_.dtype)));
    HEED_TRY(Check(settings_));
    if (!model_.tokenizer) return tl::make_unexpected(model_.tokenizer.error());
    if (model_.gpt) {
      SetArithmetic(settings_.dtype, model_.gpt.get());
      const std::string note = PrecisionNote(settings_.dtype, *model_.gpt);
      if (!note.empty()) session_.terminal.Note(note);
    }
    HEED_TRY(MakeRequests());
    GenerateOptions options;
    options.max_tokens = settings_.max_tokens;
    options.stop = settings_.stop;
    options.cache = !settings_.no_cache;
    // One pass over the weights is quicker where they lie, many are quicker over packed ones.
    options.before_decoding = [&]() -> Status {
      return model_.gpt ? model_.gpt->parameters().PackWaiting() : Status();
    };
    // On a terminal each sample is shown as it grows, so they come one by one; elsewhere all
    // decode together. A sample's text is the same either way.
    const bool stream = !session_.terminal.json() && session_.terminal.out_is_terminal();
    HEED_ASSIGN(const std::vector<Sample> samples,
                stream ? Streamed(options) : Generate(model_, requests_, options));
    if (!stream) HEED_TRY(Print(samples));
    HEED_TRY(session_.terminal.Document(Json(samples)));
    NoteWindow(samples);
    return Verdict::kDone;
  }

 private:
  Status MakeRequests() {
    const Tokenizer& tokenizer = **model_.tokenizer;
    for (size_t p = 0; p < settings_.prompt.size(); ++p) {
      HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(settings_.prompt[p], {"--prompt"}));
      if (!settings_.no_bos) tokens = tokenizer.WithBos(std::move(tokens));
      if (tokens.empty()) {
        return BadRequest("--prompt", "an empty text", "at least one token",
                          "this vocabulary has no start token");
      }
      for (const double temperature : settings_.temperature) {
        SamplingSettings sampling{temperature, settings_.top_k, settings_.top_p, settings_.min_p,
                                  settings_.repetition_penalty};
        HEED_TRY(sampling.Validate());
        for (int64_t i = 0; i < settings_.num_samples; ++i) {
          const uint64_t seed =
              static_cast<uint64_t>(session_.globals.seed) + static_cast<uint64_t>(i);
          cells_.push_back({p, temperature, seed});
          requests_.push_back({tokens, sampling, seed});
        }
      }
    }
    return {};
  }

  Result<std::vector<Sample>> Streamed(GenerateOptions options) {
    Stream stream(session_.terminal, settings_, cells_);
    std::vector<Sample> samples;
    for (size_t i = 0; i < requests_.size(); ++i) {
      HEED_TRY(stream.Begin(i));
      options.on_text = [&](size_t, std::string_view bytes) {
        return stream.Show(bytes).has_value() && !session_.terminal.closed();
      };
      HEED_ASSIGN(std::vector<Sample> one, Generate(model_, {&requests_[i], 1}, options));
      HEED_TRY(stream.End());
      samples.push_back(std::move(one[0]));
    }
    return samples;
  }

  Status Print(const std::vector<Sample>& samples) {
    Stream stream(session_.terminal, settings_, cells_);
    for (size_t i = 0; i < samples.size(); ++i) {
      HEED_TRY(stream.Begin(i));
      HEED_TRY(stream.Show(samples[i].text));
      HEED_TRY(stream.End());
    }
    return {};
  }

  std::string Json(const std::vector<Sample>& samples) const {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (size_t i = 0; i < samples.size(); ++i) {
      const Sample& sample = samples[i];
      Utf8Splitter splitter;
      std::string text = splitter.Push(sample.text);
      text += splitter.Flush();
      list.push_back({{"prompt", settings_.prompt[cells_[i].prompt]},
                      {"prompt_tokens", requests_[i].prompt},
                      {"temperature", cells_[i].temperature},
                      {"seed", cells_[i].seed},
                      {"text", text},
                      {"tokens", sample.tokens},
                      {"entropy", sample.entropy},
                      {"prefill_tokens_per_second", sample.prefill_tokens_per_second},
                      {"decode_tokens_per_second", sample.decode_tokens_per_second}});
    }
    return DocumentText({{"samples", list}});
  }

  void NoteWindow(const std::vector<Sample>& samples) {
    for (const Sample& sample : samples) {
      if (!sample.slid) continue;
      const int64_t block = model_.gpt->config().block_size;
      session_.terminal.Note(
          Wrap(fmt::format("note: text grew past the context of {} token{}; the window slid, and "
                           "the model saw its end",
                           block, Plural(block)),
               session_.terminal.note_width(), 0));
      return;
    }
  }

  Session& session_;
  const GenerateSettings& settings_;
  const std::vector<std::string>& models_;
  LanguageModel model_;
  std::vector<Cell> cells_;
  std::vector<SampleRequest> requests_;
};

}  // namespace

Command GenerateCommand() {
  Command command;
  command.name = "generate";
  command.summary = "continue prompts at temperatures";
  command.explanation =
      "Continues every prompt at every temperature. A sample depends on its prompt, temperature "
      "and seed alone, not on what else is generated; the i-th of --num-samples has seed --seed + "
      "i.";
  command.example =
      "heed generate runs/first --prompt \"ROMEO:\" --temperature 0 --temperature 0.8\n"
      "heed generate runs/first --prompt \"ROMEO:\" --num-samples 5 --json";
  command.takes_reference = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<GenerateSettings>();
    auto models = std::make_shared<std::vector<std::string>>();
    options.BindArguments("MODEL", "a model: its folder, .gguf or .bin", models.get());
    options.Bind("Sampling", *settings);
    return [settings, models](Session& session) {
      return GenerateRun(session, *settings, *models).Run();
    };
  };
  return command;
}

}  // namespace heed
