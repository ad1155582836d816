// The loss of a model on whole texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "data/dataset.h"
#include "model/language_model.h"
#include "text/tokenizer.h"

namespace heed {

// Told how many of how many bytes of texts, or held-out windows, are done.
using EvaluationProgress = std::function<void(int64_t done, int64_t total)>;

struct PlacedText {
  std::string_view text;
  TextPlace place;
};

// The loss of a model on tokens, in windows of block_size that see nothing of one another.
class WindowedLoss {
 public:
  // The model must outlive the result. Error: not enough memory.
  static Result<std::unique_ptr<WindowedLoss>> Create(const Gpt& model);
  // The sum of -log p of tokens[1], tokens[2], ..., each given what stands before it in its window.
  // `watch` is told how many of them have been predicted.
  double Sum(std::span<const int32_t> tokens,
             const std::function<void(int64_t predicted)>& watch = {}) const;

 private:
  explicit WindowedLoss(const Gpt& model) : model_(model) {}

  const Gpt& model_;
  std::unique_ptr<Activations> activations_;
};

struct TextLoss {
  double loss = 0;           // nats per predicted token
  double perplexity = 0;     // exp(loss): of the mean over all tokens
  double bits_per_byte = 0;  // the whole loss in bits over the bytes of the texts
  int64_t tokens = 0;        // predicted tokens
  int64_t bytes = 0;
  int64_t unpredicted_bytes = 0;  // of them: of first tokens, which have nothing before them
  int64_t stride = 0;  // tokens between windows' starts: block_size, so they do not overlap
};

// Each text is cut into windows of block_size tokens that see nothing of one another; with `bos`
// and a vocabulary that has a start token, each text begins with it. Without it a text's first
// token is not predicted. Errors: text outside the vocabulary; nothing to predict.
Result<TextLoss> EvaluateTexts(const Gpt& model, const Tokenizer& tokenizer,
                               std::span<const PlacedText> texts, bool bos,
                               const EvaluationProgress& progress = {});
// The same of any kind of model; one without windows has a stride of 1.
Result<TextLoss> EvaluateTexts(const LanguageModel& model, std::span<const PlacedText> texts,
                               bool bos, const EvaluationProgress& progress = {});

// The same of all that a data set holds out, in the windows of a training run's evaluations: every
// target once, no window cut short; `data` has the model's vocabulary. Errors: not enough memory; a
// model without windows beside a task that is not text.
Result<TextLoss> EvaluateHeldOut(const LanguageModel& model, const DataSet& data,
                                 const EvaluationProgress& progress = {});

}  // namespace heed
