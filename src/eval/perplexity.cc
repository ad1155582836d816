#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <vector>

#include "base/plural.h"
#include "train/held_out.h"

namespace heed {
namespace {

// Positions in a batch of windows.
constexpr int64_t kBatchPositions = 4096;

int64_t WindowsAtOnce(const Gpt& model) {
  return std::max<int64_t>(1, kBatchPositions / model.config().block_size);
}

void SetMeans(double sum, TextLoss* result) {
  result->loss = sum / static_cast<double>(result->tokens);
  result->perplexity = std::exp(result->loss);
  result->bits_per_byte =
      sum / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(1, result->bytes));
}

// Sums `sum_of_losses` over the texts' tokens; it tells its second argument how many it has
// predicted.
Result<TextLoss> Evaluate(
    const Tokenizer& tokenizer, std::span<const PlacedText> texts, bool bos,
    const EvaluationProgress& progress,
    const std::function<double(std::span<const int32_t>, const std::function<void(int64_t)>&)>&
        sum_of_losses) {
  TextLoss result;
  double sum = 0;
  int64_t all = 0;
  for (const PlacedText& text : texts) all += std::ssize(text.text);
  if (progress) progress(0, all);
  for (const auto& [text, place] : texts) {
    HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(text, place));
    const bool starts = bos && tokenizer.bos();
    if (!starts && !tokens.empty()) {
      result.unpredicted_bytes +=
          static_cast<int64_t>(tokenizer.BytesAfter(std::nullopt, tokens[0]).size());
    }
    if (bos) tokens = tokenizer.WithBos(std::move(tokens));
    const int64_t before = result.bytes, predictions = std::ssize(tokens) - 1;
    result.bytes += std::ssize(text);
    if (predictions < 1) continue;
    const auto bytes = static_cast<double>(text.size());
    sum += sum_of_losses(tokens, [&](int64_t predicted) {
      const double part = static_cast<double>(predicted) / static_cast<double>(predictions);
      if (progress) progress(before + static_cast<int64_t>(part * bytes), all);
    });
    result.tokens += predictions;
  }
  if (result.tokens == 0) {
    return Fail(ErrorKind::kFormat, texts.empty() ? "text" : texts.back().place.name,
                fmt::format("{} byte{}", result.bytes, Plural(result.bytes)),
                "at least 2 tokens, so that one can be predicted");
  }
  SetMeans(sum, &result);
  return result;
}

}  // namespace

Result<std::unique_ptr<WindowedLoss>> WindowedLoss::Create(const Gpt& model) {
  std::unique_ptr<WindowedLoss> loss(new WindowedLoss(model));
  HEED_ASSIGN(loss->activations_,
              Activations::Create(model, WindowsAtOnce(model), model.config().block_size,
                                  /*training=*/false));
  return loss;
}

double WindowedLoss::Sum(std::span<const int32_t> tokens,
                         const std::function<void(int64_t)>& watch) const {
  const int64_t T = model_.config().block_size;
  const auto predicted = static_cast<int64_t>(tokens.size()) - 1;
  double sum = 0;
  for (int64_t at = 0; at < predicted;) {
    const int64_t whole = (predicted - at) / T;
    const Pass pass = whole > 0 ? model_.NewPass(std::min(whole, WindowsAtOnce(model_)), T)
                                : model_.NewPass(1, predicted - at);
    // Windows lie one behind another, so their targets do too, one token further.
    sum += model_.Loss(pass, tokens.data() + at, tokens.data() + at + 1, activations_.get());
    at += pass.rows();
    if (watch) watch(at);
  }
  return sum;
}

Result<TextLoss> EvaluateTexts(const Gpt& model, const Tokenizer& tokenizer,
                               std::span<const PlacedText> texts, bool bos,
                               const EvaluationProgress& progress) {
  HEED_ASSIGN(const std::unique_ptr<WindowedLoss> loss, WindowedLoss::Create(model));
  HEED_ASSIGN(TextLoss result, Evaluate(tokenizer, texts, bos, progress,
                                        [&](std::span<const int32_t> tokens, const auto& watch) {
                                          return loss->Sum(tokens, watch);
                                        }));
  result.stride = model.config().block_size;
  return result;
}

Result<TextLoss> EvaluateTexts(const LanguageModel& model, std::span<const PlacedText> texts,
                               bool bos, const EvaluationProgress& progress) {
  if (model.gpt) return EvaluateTexts(*model.gpt, **model.tokenizer, texts, bos, progress);
  HEED_ASSIGN(TextLoss result, Evaluate(**model.tokenizer, texts, bos, progress,
                                        [&](std::span<const int32_t> tokens, const auto&) {
                                          return model.predictor->Loss(tokens);
                                        }));
  result.stride = 1;
  return result;
}

Result<TextLoss> EvaluateHeldOut(const LanguageModel& model, const DataSet& data,
                                 const EvaluationProgress& progress) {
  const Tokenizer& tokenizer = *data.tokenizer;
  const BatchSource& source = *data.batches;
  TextLoss result;
  if (model.gpt) {
    const int64_t B = WindowsAtOnce(*model.gpt);
    HEED_ASSIGN(const auto activations,
                Activations::Create(*model.gpt, B, source.block(), /*training=*/false));
    const int64_t windows = source.ValWindows();
    if (progress) progress(0, windows);
    const HeldOutLoss loss = MeasureHeldOut(*model.gpt, tokenizer, source, windows, B,
                                            activations.get(), [&](int64_t done) {
                                              if (progress) progress(done, windows);
                                            });
    result.tokens = loss.targets;
    result.bytes = loss.bytes;
    result.stride = source.block();
    SetMeans(loss.sum, &result);
    return result;
  }
  const auto* text = dynamic_cast<const TextBatches*>(&source);
  if (text == nullptr) {
    return BadRequest("text", "a task that is not text", "text for a model that counts");
  }
  std::vector<int32_t> tokens(static_cast<size_t>(text->val_tokens()));
  text->ReadHeldOut(0, text->val_tokens(), tokens.data());
  result.tokens = text->val_tokens() - 1;
  for (size_t i = 1; i < tokens.size(); ++i) {
    result.bytes += static_cast<int64_t>(tokenizer.TokenBytes(tokens[i]).size());
  }
  result.stride = 1;
  SetMeans(model.predictor->Loss(tokens), &result);
  return result;
}

}  // namespace heed
