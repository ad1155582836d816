#include "infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "infer/cache.h"

namespace heed {
namespace {

// Prompts are read in pieces of this many positions, so that memory does not grow with them.
constexpr int64_t kPrefillChunk = 512;
// Samples that decode together.
constexpr int64_t kMaxRows = 32;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Finds stop strings in a text that grows, and says how much of it is safe to show.
class StopWatch {
 public:
  explicit StopWatch(const std::vector<std::string>& stops) : stops_(stops) {
    for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
  }

  // The first stop string's place in `text`, of which all but the last `fresh` bytes were searched
  // before; npos when there is none.
  size_t Find(const std::string& text, size_t fresh) const {
    const size_t back = fresh + longest_;
    const size_t from = text.size() > back ? text.size() - back : 0;
    size_t first = std::string::npos;
    for (const std::string& stop : stops_) first = std::min(first, text.find(stop, from));
    return first;
  }

  // Bytes of `text` that cannot become part of a stop string.
  size_t Safe(const std::string& text) const {
    size_t held = 0;
    for (const std::string& stop : stops_) {
      for (size_t n = std::min(stop.size() - 1, text.size()); n > held; --n) {
        if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = n;
      }
    }
    return text.size() - held;
  }

 private:
  const std::vector<std::string>& stops_;
  size_t longest_ = 0;
};

double Entropy(std::span<const double> p) {
  double sum = 0;
  for (const double x : p) {
    if (x > 0) sum -= x * std::log(x);
  }
  return sum;
}

// Samples up to kMaxRows requests at a time.
class Batch {
 public:
  // One of `model` and `predictor` is null.
  Batch(const Gpt* model, const Predictor* predictor, const Tokenizer& tokenizer,
        std::span<const SampleRequest> requests, size_t first, const GenerateOptions& options)
      : model_(model),
        predictor_(predictor),
        tokenizer_(tokenizer),
        requests_(requests),
        first_(first),
        options_(options),
        watch_(options.stop),
        cached_(options.cache && model != nullptr),
        block_(model != nullptr ? model->config().block_size : std::numeric_limits<int64_t>::max()),
        vocab_(model != nullptr ? model->config().vocab_size : predictor->vocab_size()) {
    for (const SampleRequest& request : requests) texts_.push_back(request.prompt);
    samples_.resize(requests.size());
    shown_.resize(requests.size());
    entropies_.resize(requests.size());
    drawn_.resize(requests.size());
  }

  Result<std::vector<Sample>> Run() {
    if (options_.max_tokens > 0) {
      HEED_TRY(Allocate());
      HEED_TRY(Prefill());
      const double start = Seconds();
      if (options_.before_decoding && !(rows_.empty() && windowed_.empty())) {
        HEED_TRY(options_.before_decoding());
      }
      while (!ended_ && (!rows_.empty() || !windowed_.empty())) {
        HEED_TRY(DecodeStep());
        HEED_TRY(WindowStep());
      }
      const double seconds = Seconds() - start;
      for (size_t r = 0; r < samples_.size(); ++r) {
        Sample& sample = samples_[r];
        sample.entropy = drawn_[r] > 0 ? entropies_[r] / static_cast<double>(drawn_[r]) : 0;
        // The first token comes from the prefill.
        const auto decoded = static_cast<double>(sample.tokens.size()) - 1;
        sample.decode_tokens_per_second = decoded > 0 ? decoded / seconds : 0;
      }
    }
    return std::move(samples_);
  }

  bool ended() const { return ended_; }

 private:
  // The positions that a request's text can grow to and still be cached.
  int64_t CachedPositions(const std::vector<int32_t>& prompt) const {
    return std::min<int64_t>(block_, static_cast<int64_t>(prompt.size()) + options_.max_tokens);
  }

  Status Allocate() {
    int64_t capacity = 1;
    for (const auto& text : texts_) capacity = std::max(capacity, CachedPositions(text));
    const auto rows = static_cast<int64_t>(requests_.size());
    logits_.resize(static_cast<size_t>(rows * vocab_));
    if (model_ == nullptr) return {};
    int64_t positions = std::max(rows, std::min(capacity, kPrefillChunk));
    if (cached_) {
      HEED_ASSIGN(cache_, KvCache::Create(model_->config(), rows, capacity));
    }
    // The window, and reading without a cache, take the whole text at once.
    const bool whole = !cached_ || std::any_of(texts_.begin(), texts_.end(), [&](auto& t) {
      return static_cast<int64_t>(t.size()) + options_.max_tokens > block_ + 1;
    });
    if (whole) positions = std::max(positions, capacity);
    HEED_ASSIGN(activations_, Activations::Create(*model_, 1, positions, /*training=*/false));
    return {};
  }

  // The last block_size tokens of a text.
  std::span<const int32_t> Window(size_t r) const {
    const std::span<const int32_t> text = texts_[r];
    return text.size() > static_cast<size_t>(block_) ? text.last(block_) : text;
  }

  Status Prefill() {
    for (size_t r = 0; r < requests_.size(); ++r) {
      const double start = Seconds();
      const size_t twin = FirstEqual(r);
      if (twin < r) {
        std::copy_n(logits_.begin() + twin * vocab_, vocab_, logits_.begin() + r * vocab_);
        samples_[r].prefill_tokens_per_second = samples_[twin].prefill_tokens_per_second;
        samples_[r].slid = samples_[twin].slid;
        if (cached_) cache_->CopyRow(twin, r);
      } else {
        ReadWhole(r, cached_);
        samples_[r].prefill_tokens_per_second =
            static_cast<double>(Window(r).size()) / (Seconds() - start);
      }
    }
    // Rows keep their requests' order, so that row i of the logits is request i's.
    for (size_t r = 0; r < requests_.size(); ++r) rows_.push_back(r);
    return Choose(&rows_, /*cached=*/cached_);
  }

  size_t FirstEqual(size_t r) const {
    size_t twin = 0;
    while (requests_[twin].prompt != requests_[r].prompt) ++twin;
    return twin;
  }

  // Reads the window of request r into row r of the logits, by way of the cache or not.
  void ReadWhole(size_t r, bool cached) {
    if (model_ == nullptr) {
      predictor_->LogProbabilities(texts_[r], {&logits_[r * vocab_], static_cast<size_t>(vocab_)});
      return;
    }
    const std::span<const int32_t> text = Window(r);
    samples_[r].slid |= text.size() < texts_[r].size();
    const auto length = static_cast<int64_t>(text.size());
    const int64_t chunk = cached ? kPrefillChunk : length;
    for (int64_t at = 0; at < length; at += chunk) {
      Pass pass = model_->NewPass(1, std::min(chunk, length - at));
      std::vector<KeyValueCache> layers;
      if (cached) layers = cache_->Extend(r, 1, pass.T, &pass.offsets);
      const bool more = at + pass.T < length;
      pass.first_output = more ? pass.T : pass.T - 1;
      const float* x = model_->Forward(pass, text.data() + at, activations_.get(), layers);
      if (!more) model_->Logits(pass, x, 1, activations_.get(), &logits_[r * vocab_]);
    }
  }

  // One token for every row of the cache.
  Status DecodeStep() {
    if (rows_.empty()) return {};
    const auto B = static_cast<int64_t>(rows_.size());
    std::vector<int32_t> tokens;
    for (size_t r : rows_) tokens.push_back(texts_[r].back());
    Pass pass = model_->NewPass(B, 1);
    const std::vector<KeyValueCache> layers = cache_->Extend(0, B, 1, &pass.offsets);
    const float* x = model_->Forward(pass, tokens.data(), activations_.get(), layers);
    model_->Logits(pass, x, B, activations_.get(), logits_.data());
    return Choose(&rows_, /*cached=*/true);
  }

  // One token for every text that is read anew.
  Status WindowStep() {
    std::vector<size_t> texts;
    texts.swap(windowed_);
    for (size_t r : texts) {
      if (ended_) break;
      ReadWhole(r, /*cached=*/false);
      std::vector<size_t> one = {r};
      // ReadWhole filled row r; Choose reads row 0 of a list of one.
      std::copy_n(logits_.begin() + r * vocab_, vocab_, logits_.begin());
      HEED_TRY(Choose(&one, /*cached=*/false));
    }
    return {};
  }

  // Draws a token for each request of `rows` from the logits of its place in the list. Requests
  // that are done leave the list; those that outgrow the cache, or have none, become windowed.
  Status Choose(std::vector<size_t>* rows, bool cached) {
    size_t kept = 0;
    for (size_t i = 0; i < rows->size() && !ended_; ++i) {
      const size_t r = (*rows)[i];
      HEED_ASSIGN(const bool more, Accept(r, {&logits_[i * vocab_], static_cast<size_t>(vocab_)}));
      if (!more) continue;
      if (!cached || static_cast<int64_t>(texts_[r].size()) > block_) {
        windowed_.push_back(r);
        continue;
      }
      cache_->CopyRow(i, kept);
      (*rows)[kept++] = r;
    }
    rows->resize(kept);
    return {};
  }

  // Draws and keeps request r's next token; false when the sample is complete.
  Result<bool> Accept(size_t r, std::span<const float> logits) {
    bool finite = true;
    for (const float x : logits) finite &= x - x == 0;
    for (size_t i = 0; !finite && i < logits.size(); ++i) {
      const bool impossible = predictor_ != nullptr && logits[i] < 0;  // -inf: probability 0
      if (!std::isfinite(logits[i]) && !impossible) {
        return Fail(ErrorKind::kNumeric, fmt::format("logit {}", i), fmt::format("{}", logits[i]),
                    "a finite number", "the model's weights are damaged or diverged");
      }
    }
    const SampleRequest& request = requests_[r];
    Sample& sample = samples_[r];
    // An embedding may have more rows than the vocabulary has tokens.
    logits = logits.first(static_cast<size_t>(tokenizer_.vocab_size()));
    int32_t token = 0;
    if (request.sampling.temperature == 0 && request.sampling.repetition_penalty == 1) {
      token = LargestLogit(logits);
    } else {
      const std::vector<double> p = SamplingProbabilities(request.sampling, logits, texts_[r]);
      const RandomKey key{request.seed, 0, kSampleStream};
      token = Draw(p, RandomUniform53(key, sample.tokens.size()));
      entropies_[r] += Entropy(p);
    }
    ++drawn_[r];
    if (token == tokenizer_.eos() || token == tokenizer_.bos()) {
      sample.ended = true;
      return Show(r, /*done=*/true);
    }
    const std::string_view bytes = tokenizer_.BytesAfter(texts_[r].back(), token);
    texts_[r].push_back(token);
    sample.tokens.push_back(token);
    sample.text += bytes;
    const size_t stop = watch_.Find(sample.text, bytes.size());
    if (stop != std::string::npos) {
      sample.stopped = true;
      CutBefore(stop, r);
    }
    return Show(
        r, sample.stopped || static_cast<int64_t>(sample.tokens.size()) >= options_.max_tokens);
  }

  // Hands out what is certain of request r's text; false when it is done or nobody wants more.
  bool Show(size_t r, bool done) {
    const Sample& sample = samples_[r];
    const size_t safe = done ? sample.text.size() : watch_.Safe(sample.text);
    if (safe > shown_[r] && options_.on_text) {
      const std::string_view fresh =
          std::string_view(sample.text).substr(shown_[r], safe - shown_[r]);
      ended_ = !options_.on_text(first_ + r, fresh);
      shown_[r] = safe;
    }
    return !done && !ended_;
  }

  // Cuts the text at byte `stop` and drops the tokens that begin there or later.
  void CutBefore(size_t stop, size_t r) {
    Sample& sample = samples_[r];
    size_t end = sample.text.size();
    sample.text.resize(stop);
    while (!sample.tokens.empty()) {
      const int32_t before = texts_[r][texts_[r].size() - 2];
      end -= tokenizer_.BytesAfter(before, sample.tokens.back()).size();
      if (end < stop) break;
      sample.tokens.pop_back();
      texts_[r].pop_back();
    }
  }

  const Gpt* const model_;
  const Predictor* const predictor_;
  const Tokenizer& tokenizer_;
  const std::span<const SampleRequest> requests_;
  const size_t first_;  // index of requests_[0] among all
  const GenerateOptions& options_;
  const StopWatch watch_;
  const bool cached_;
  const int64_t block_, vocab_;

  std::vector<std::vector<int32_t>> texts_;  // prompt and continuation
  std::vector<Sample> samples_;
  std::vector<double> entropies_;  // sums over the draws of each request
  std::vector<int64_t> drawn_;     // how many
  std::vector<size_t> shown_;      // bytes of each sample's text given to on_text
  std::vector<size_t> rows_;       // the request in each row of the cache
  std::vector<size_t> windowed_;   // requests whose text is read anew for each token
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Activations> activations_;
  std::vector<float> logits_;  // [rows, V]
  bool ended_ = false;         // by on_text
};

Result<std::vector<Sample>> GenerateInBatches(const Gpt* model, const Predictor* predictor,
                                              const Tokenizer& tokenizer,
                                              std::span<const SampleRequest> requests,
                                              const GenerateOptions& options) {
  std::vector<Sample> samples;
  for (size_t first = 0; first < requests.size(); first += kMaxRows) {
    const auto part = requests.subspan(first, std::min<size_t>(kMaxRows, requests.size() - first));
    Batch batch(model, predictor, tokenizer, part, first, options);
    HEED_ASSIGN(std::vector<Sample> done, batch.Run());
    std::move(done.begin(), done.end(), std::back_inserter(samples));
    if (batch.ended()) break;
  }
  samples.resize(requests.size());
  return samples;
}

}  // namespace

Result<std::vector<Sample>> Generate(const Gpt& model, const Tokenizer& tokenizer,
                                     std::span<const SampleRequest> requests,
                                     const GenerateOptions& options) {
  return GenerateInBatches(&model, nullptr, tokenizer, requests, options);
}

Result<std::vector<Sample>> Generate(const LanguageModel& model,
                                     std::span<const SampleRequest> requests,
                                     const GenerateOptions& options) {
  return GenerateInBatches(model.gpt.get(), model.predictor.get(), **model.tokenizer, requests,
                           options);
}

}  // namespace heed
