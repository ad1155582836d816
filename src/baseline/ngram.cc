#include "baseline/ngram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/fields_text.h"
#include "base/json.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/folder.h"

namespace heed {
namespace {

constexpr int64_t kLargestOrder = 16;
constexpr int64_t kLargestVocabulary = int64_t{1} << 30;
constexpr size_t kMostConfigBytes = 1 << 20;

std::string Inside(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

template <class Tokens>
std::u32string Key(const Tokens& tokens) {
  return {tokens.begin(), tokens.end()};
}

}  // namespace

std::span<const EnumName<Smoothing>> EnumNames(Smoothing) {
  static constexpr EnumName<Smoothing> kNames[] = {{Smoothing::kNone, "none"},
                                                   {Smoothing::kAddK, "add-k"},
                                                   {Smoothing::kBackoff, "backoff"},
                                                   {Smoothing::kKneserNey, "kneser-ney"}};
  return kNames;
}

Status NgramSettings::Validate() const {
  if (order < 1 || order > kLargestOrder) {
    return BadRequest("order", fmt::format("{}", order), fmt::format("1 to {}", kLargestOrder));
  }
  if (!std::isfinite(add_k) || add_k <= 0) {
    return BadRequest("add_k", fmt::format("{}", add_k), "a finite number above 0",
                      "for no smoothing at all there is --smoothing none");
  }
  return {};
}

const Ngram::Follower* Ngram::Followers::Find(int32_t token) const {
  const auto at = std::ranges::lower_bound(all, token, {}, &Follower::token);
  return at != all.end() && at->token == token ? &*at : nullptr;
}

Ngram::Follower& Ngram::Followers::At(int32_t token) {
  const auto at = std::ranges::lower_bound(all, token, {}, &Follower::token);
  if (at != all.end() && at->token == token) return *at;
  return *all.insert(at, Follower{token});
}

Ngram::Ngram(const NgramSettings& settings, int64_t vocab_size)
    : settings_(settings), vocab_size_(vocab_size), levels_(static_cast<size_t>(settings.order)) {}

const Ngram::Follower* Ngram::FindRun(std::span<const int32_t> run) const {
  const Level& level = levels_[run.size() - 1];
  const auto found = level.contexts.find(Key(run.first(run.size() - 1)));
  return found == level.contexts.end() ? nullptr : found->second.Find(run.back());
}

void Ngram::Add(std::span<const int32_t> run, int64_t count) {
  Level& level = levels_[run.size() - 1];
  Followers& followers = level.contexts[Key(run.first(run.size() - 1))];
  Follower& follower = followers.At(run.back());
  const bool fresh = follower.count == 0;
  follower.count += count;
  followers.count += count;
  if (!fresh) return;
  ++level.distinct;
  if (run.size() > 1) CountContinuation(run.subspan(1));
}

// One more token was seen before the run.
void Ngram::CountContinuation(std::span<const int32_t> run) {
  Followers& followers = levels_[run.size() - 1].contexts[Key(run.first(run.size() - 1))];
  followers.continued += ++followers.At(run.back()).continuations == 1;
  ++followers.continuations;
}

void Ngram::Count(std::span<const int32_t> text, int64_t from) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t at = from; at < size; ++at) {
    // Short runs first: the end of each run is counted before it.
    for (int64_t n = 1; n <= std::min(settings_.order, at + 1); ++n) {
      Add(text.subspan(static_cast<size_t>(at + 1 - n), static_cast<size_t>(n)), 1);
    }
  }
}

// Kneser-Ney's lower lengths ask after how many different tokens a run was seen, not how often.
bool Ngram::UsesContinuations(size_t length) const {
  return settings_.smoothing == Smoothing::kKneserNey && length + 1 < levels_.size();
}

// The discount n1 / (n1 + 2 n2), of how many runs were seen once and twice (Ney, Essen, Kneser
// 1994), and what is left to tokens that never followed a context.
void Ngram::Estimate() {
  for (size_t length = 0; length < levels_.size(); ++length) {
    Level& level = levels_[length];
    double once = 0, twice = 0;
    for (const auto& [context, followers] : level.contexts) {
      for (const Follower& f : followers.all) {
        const int64_t count = UsesContinuations(length) ? f.continuations : f.count;
        once += count == 1;
        twice += count == 2;
      }
    }
    level.discount = once > 0 ? once / (once + 2 * twice) : 0.5;
    if (settings_.smoothing != Smoothing::kBackoff) continue;
    for (auto& [context, followers] : level.contexts) {
      const std::vector<int32_t> tokens(context.begin(), context.end());
      const Chain chain = ChainOf(tokens);
      followers.unseen_mass = 1;
      for (const Follower& f : followers.all) {
        followers.unseen_mass -= Backoff(chain, length, f.token);
      }
      if (static_cast<int64_t>(followers.all.size()) == vocab_size_) followers.unseen_mass = 0;
    }
  }
}

Ngram::Chain Ngram::ChainOf(std::span<const int32_t> text) const {
  Chain chain(std::min(levels_.size(), text.size() + 1));
  for (size_t length = 0; length < chain.size(); ++length) {
    const auto found = levels_[length].contexts.find(Key(text.last(length)));
    chain[length] = found == levels_[length].contexts.end() ? nullptr : &found->second;
  }
  return chain;
}

// Probabilities given the last length - 1 tokens; length 0 is the uniform distribution.
double Ngram::KneserNey(const Chain& chain, size_t length, int32_t token) const {
  if (length == 0) return 1.0 / static_cast<double>(vocab_size_);
  const double lower = KneserNey(chain, length - 1, token);
  const Followers* followers = chain[length - 1];
  if (followers == nullptr) return lower;
  const bool continuations = UsesContinuations(length - 1);
  const auto total =
      static_cast<double>(continuations ? followers->continuations : followers->count);
  if (total == 0) return lower;
  const auto kinds = static_cast<double>(
      continuations ? followers->continued : static_cast<int64_t>(followers->all.size()));
  const Follower* f = followers->Find(token);
  const double count =
      f == nullptr ? 0 : static_cast<double>(continuations ? f->continuations : f->count);
  const double discount = levels_[length - 1].discount;
  return (std::max(count - discount, 0.0) + discount * kinds * lower) / total;
}

double Ngram::Backoff(const Chain& chain, size_t length, int32_t token) const {
  if (length == 0) return 1.0 / static_cast<double>(vocab_size_);
  const Followers* followers = chain[length - 1];
  if (followers == nullptr) return Backoff(chain, length - 1, token);
  const auto kinds = static_cast<double>(followers->all.size());
  const auto total = static_cast<double>(followers->count);
  // Nothing is held back for others where there are none.
  const double discount =
      followers->all.size() == static_cast<size_t>(vocab_size_) ? 0 : levels_[length - 1].discount;
  if (const Follower* f = followers->Find(token)) {
    return (static_cast<double>(f->count) - discount) / total;
  }
  return discount * kinds / total * Backoff(chain, length - 1, token) / followers->unseen_mass;
}

double Ngram::At(const Chain& chain, size_t length, int32_t token) const {
  switch (settings_.smoothing) {
    case Smoothing::kKneserNey:
      return KneserNey(chain, length, token);
    case Smoothing::kBackoff:
      return Backoff(chain, length, token);
    case Smoothing::kNone:
      while (length > 1 && chain[length - 1] == nullptr) --length;
      break;
    case Smoothing::kAddK:
      break;
  }
  const double k = settings_.smoothing == Smoothing::kAddK ? settings_.add_k : 0;
  const Followers* followers = chain[length - 1];
  if (followers == nullptr) return 1.0 / static_cast<double>(vocab_size_);
  const Follower* f = followers->Find(token);
  return ((f == nullptr ? 0 : static_cast<double>(f->count)) + k) /
         (static_cast<double>(followers->count) + k * static_cast<double>(vocab_size_));
}

double Ngram::Probability(std::span<const int32_t> text, int32_t next) const {
  const Chain chain = ChainOf(text);
  return At(chain, chain.size(), next);
}

bool Ngram::ContextSeen(std::span<const int32_t> text) const { return ChainOf(text).back(); }

void Ngram::LogProbabilities(std::span<const int32_t> text, std::span<float> log_p) const {
  const Chain chain = ChainOf(text);
  for (size_t token = 0; token < log_p.size(); ++token) {
    log_p[token] =
        static_cast<float>(std::log(At(chain, chain.size(), static_cast<int32_t>(token))));
  }
}

double Ngram::Loss(std::span<const int32_t> text) const {
  double sum = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    sum -= std::log(Probability(text.first(at), text[at]));
  }
  return sum;
}

std::string Ngram::Description() const {
  std::string text = fmt::format(
      "n-gram model of order {}, smoothing {}{}, vocabulary {}\n", settings_.order,
      NameOf(settings_.smoothing),
      settings_.smoothing == Smoothing::kAddK ? fmt::format(" with k = {}", settings_.add_k) : "",
      vocab_size_);
  text += fmt::format("{:>6} {:>14} {:>14} {:>10}\n", "length", "distinct", "contexts", "discount");
  for (int64_t n = 1; n <= settings_.order; ++n) {
    const Level& level = levels_[static_cast<size_t>(n - 1)];
    text += fmt::format("{:>6} {:>14} {:>14} {:>10.4f}\n", n, level.distinct, level.contexts.size(),
                        level.discount);
  }
  return text;
}

Status Ngram::Save(const std::string& folder, const Tokenizer& tokenizer, bool overwrite) const {
  HEED_TRY(MakeFolder(folder));
  nlohmann::ordered_json json = {{"model_type", "heed"}, {"model", NameOf(ModelKind::kNgram)}};
  json.update(nlohmann::ordered_json::parse(ToJson(settings_)));
  json["vocab_size"] = vocab_size_;
  const std::string config = json.dump(2) + "\n", vocabulary = tokenizer.Json();
  for (const auto& [name, text] :
       {std::pair("config.json", &config), std::pair("tokenizer.json", &vocabulary)}) {
    const std::string_view piece = *text;
    HEED_TRY(WriteFileAtomically(Inside(folder, name), {&piece, 1}, overwrite));
  }

  std::vector<std::vector<int32_t>> tokens(levels_.size());
  std::vector<std::vector<int64_t>> counts(levels_.size());
  std::vector<TensorToWrite> tensors;
  for (size_t length = 0; length < levels_.size(); ++length) {
    // Sorted, so that the same counts make the same file.
    std::vector<const Context*> contexts;
    for (const auto& entry : levels_[length].contexts) contexts.push_back(&entry.first);
    std::ranges::sort(contexts, {},
                      [](const Context* context) -> const Context& { return *context; });
    for (const Context* context : contexts) {
      for (const Follower& f : levels_[length].contexts.at(*context).all) {
        tokens[length].insert(tokens[length].end(), context->begin(), context->end());
        tokens[length].push_back(f.token);
        counts[length].push_back(f.count);
      }
    }
    const auto runs = static_cast<int64_t>(counts[length].size());
    const auto n = static_cast<int64_t>(length + 1);
    tensors.push_back({fmt::format("tokens.{}", n), DType::kI32, {runs, n}, tokens[length].data()});
    tensors.push_back({fmt::format("counts.{}", n), DType::kI64, {runs}, counts[length].data()});
  }
  return WriteSafetensors(Inside(folder, "model.safetensors"), tensors, {{"format", "heed"}},
                          overwrite);
}

namespace {

// The settings and the vocabulary's size of an n-gram model's config.json.
Result<std::pair<NgramSettings, int64_t>> ReadNgramConfig(const std::string& path) {
  HEED_ASSIGN(const std::string text, ReadFile(path, kMostConfigBytes));
  HEED_ASSIGN(const nlohmann::json json, ParseJsonObject(text, path));
  NgramSettings settings;
  Status status;
  const auto take = [&](std::string_view name, auto& field) {
    const auto at = json.find(name);
    const std::string where = path + ": " + std::string(name);
    if (!status) return;
    if (at == json.end()) {
      status = Fail(ErrorKind::kFormat, where, "no such key", "a setting of an n-gram model");
      return;
    }
    status = ParseField(where, at->is_string() ? at->get<std::string>() : at->dump(), &field);
  };
  NgramSettings::Fields(
      settings, [&](std::string_view name, auto& field, std::string_view) { take(name, field); });
  int64_t vocab_size = 0;
  take("vocab_size", vocab_size);
  HEED_TRY(status);
  HEED_TRY(settings.Validate());
  if (vocab_size < 1 || vocab_size > kLargestVocabulary) {
    return Fail(ErrorKind::kFormat, path + ": vocab_size", fmt::format("{}", vocab_size),
                fmt::format("1 to {}", kLargestVocabulary));
  }
  return std::pair(settings, vocab_size);
}

// The runs of n tokens in a model's file: [distinct, n] tokens beside [distinct] counts.
struct Runs {
  std::vector<int64_t> tokens, counts;
};

Result<Runs> ReadRuns(const SafetensorsFile& file, const std::string& path, int64_t n,
                      int64_t vocab_size) {
  const std::string name = fmt::format("tokens.{}", n);
  Runs runs;
  HEED_ASSIGN(runs.tokens, file.Integers(name));
  HEED_ASSIGN(runs.counts, file.Integers(fmt::format("counts.{}", n)));
  const auto rows = static_cast<int64_t>(runs.counts.size());
  if (file.Find(name)->shape != std::vector<int64_t>{rows, n}) {
    return Fail(ErrorKind::kFormat, path + ": " + name, "another shape",
                fmt::format("[{}, {}], a run for each count", rows, n));
  }
  const auto known = [&](int64_t token) { return token >= 0 && token < vocab_size; };
  if (!std::ranges::all_of(runs.tokens, known)) {
    return Fail(ErrorKind::kFormat, path + ": " + name, "a token outside the vocabulary",
                fmt::format("0 to {}", vocab_size - 1));
  }
  constexpr int64_t kMostCounts = int64_t{1} << 40;
  const auto counted = [](int64_t count) { return count >= 1 && count <= kMostCounts; };
  if (!std::ranges::all_of(runs.counts, counted)) {
    return Fail(ErrorKind::kFormat, fmt::format("{}: counts.{}", path, n), "a count out of range",
                fmt::format("1 to {}", kMostCounts));
  }
  return runs;
}

}  // namespace

Result<Ngram> Ngram::Load(const std::string& folder) {
  HEED_ASSIGN(const auto config, ReadNgramConfig(Inside(folder, "config.json")));
  const auto& [settings, vocab_size] = config;
  const std::string path = Inside(folder, "model.safetensors");
  HEED_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  Ngram model(settings, vocab_size);
  for (int64_t n = 1; n <= settings.order; ++n) {
    HEED_ASSIGN(const Runs runs, ReadRuns(file, path, n, vocab_size));
    for (size_t i = 0; i < runs.counts.size(); ++i) {
      const auto begin = runs.tokens.begin() + static_cast<ptrdiff_t>(i) * n;
      const std::vector<int32_t> run(begin, begin + n);
      if (n > 1 && model.FindRun(std::span(run).subspan(1)) == nullptr) {
        return Fail(ErrorKind::kFormat, fmt::format("{}: tokens.{}", path, n),
                    fmt::format("run {} without its last {} tokens in tokens.{}", i, n - 1, n - 1),
                    "counts of one text");
      }
      model.Add(run, runs.counts[i]);
    }
  }
  model.Estimate();
  return model;
}

}  // namespace heed
