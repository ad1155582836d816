// n-gram models: the next token's probability from how often it followed the last order - 1 tokens
// (Shannon 1948). Counts are exact; the smoothings say what to do where they are few.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fields.h"
#include "base/status.h"
#include "model/language_model.h"

namespace heed {

enum class Smoothing {
  kNone,       // c(h, w) / c(h) of the longest context h that was seen
  kAddK,       // (c(h, w) + k) / (c(h) + k V) (Lidstone 1920)
  kBackoff,    // discounted counts where there are any, else the shorter context (Katz 1987)
  kKneserNey,  // interpolated, one discount a length (Kneser, Ney 1995; Chen, Goodman 1999)
};
std::span<const EnumName<Smoothing>> EnumNames(Smoothing);

struct NgramSettings {
  int64_t order = 3;
  Smoothing smoothing = Smoothing::kKneserNey;
  double add_k = 0.1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("order", self.order, "tokens of an n-gram: 1 to 16");
    visit("smoothing", self.smoothing, "what to do where counts are few");
    visit("add_k", self.add_k, "added to every count, for add-k");
  }

  Status Validate() const;
};

class Ngram : public Predictor {
 public:
  // Valid settings.
  Ngram(const NgramSettings& settings, int64_t vocab_size);

  // Counts every run of 1 to `order` tokens that lies inside `text`; runs begin before `from` only
  // as the context of later tokens.
  void Count(std::span<const int32_t> text, int64_t from = 0);
  // Fits discounts to the counts; to be called before anything is asked.
  void Estimate();

  double Probability(std::span<const int32_t> text, int32_t next) const;
  // Whether the last order - 1 tokens (or all, of a shorter text) were ever followed by something.
  bool ContextSeen(std::span<const int32_t> text) const;

  int64_t vocab_size() const override { return vocab_size_; }
  void LogProbabilities(std::span<const int32_t> text, std::span<float> log_p) const override;
  double Loss(std::span<const int32_t> text) const override;
  std::string Description() const override;

  const NgramSettings& settings() const { return settings_; }
  // Different runs of n tokens that were counted.
  int64_t distinct(int64_t n) const { return levels_[static_cast<size_t>(n - 1)].distinct; }

  // A model's folder: config.json with the settings, and for each n `tokens.n` [distinct, n] I32 in
  // order beside `counts.n` [distinct] I64. Errors: as WriteSafetensors.
  Status Save(const std::string& folder, const Tokenizer& tokenizer, bool overwrite) const;
  // Errors (kFormat): a setting or tensor that is missing or out of range; a run whose own end was
  // not counted.
  static Result<Ngram> Load(const std::string& folder);

 private:
  using Context = std::u32string;  // tokens
  struct Follower {
    int32_t token = 0;
    int64_t count = 0;
    int64_t continuations = 0;  // different tokens that stood before context and token
  };
  struct Followers {
    std::vector<Follower> all;  // by token
    int64_t count = 0;          // sums over all
    int64_t continuations = 0;
    int64_t continued = 0;   // followers with continuations
    double unseen_mass = 0;  // back-off: what shorter contexts give to other tokens

    const Follower* Find(int32_t token) const;
    Follower& At(int32_t token);
  };
  // Runs of one length, by their context.
  struct Level {
    std::unordered_map<Context, Followers> contexts;
    int64_t distinct = 0;
    double discount = 0;
  };
  // The followers of the text's last 0, 1, ... tokens, or null where they were never seen.
  using Chain = std::vector<const Followers*>;

  const Follower* FindRun(std::span<const int32_t> run) const;
  void Add(std::span<const int32_t> run, int64_t count);
  void CountContinuation(std::span<const int32_t> run);
  Chain ChainOf(std::span<const int32_t> text) const;
  double At(const Chain& chain, size_t length, int32_t token) const;
  double KneserNey(const Chain& chain, size_t length, int32_t token) const;
  double Backoff(const Chain& chain, size_t length, int32_t token) const;
  bool UsesContinuations(size_t length) const;

  NgramSettings settings_;
  int64_t vocab_size_;
  std::vector<Level> levels_;  // [order]
};

}  // namespace heed
