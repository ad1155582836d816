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

// Sums `sum_of_losses` over the texts' tokens.
Result<TextLoss> Evaluate(const Tokenizer& tokenizer, std::span<const PlacedText> texts, bool bos,
                          const std::function<double(std::span<const int32_t>)>& sum_of_losses) {
  TextLoss result;
  double sum = 0;
  for (const auto& [text, place] : texts) {
    HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(text, place));
    const bool starts = bos && tokenizer.bos();
    if (!starts && !tokens.empty()) {
      result.unpredicted_bytes +=
          static_cast<int64_t>(tokenizer.BytesAfter(std::nullopt, tokens[0]).size());
    }
    if (bos) tokens = tokenizer.WithBos(std::move(tokens));
    result.bytes += static_cast<int64_t>(text.size());
    if (tokens.size() < 2) continue;
    sum += sum_of_losses(tokens);
    result.tokens += static_cast<int64_t>(tokens.size()) - 1;
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

double WindowedLoss::Sum(std::span<const int32_t> tokens) const {
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
  }
  return sum;
}

Result<TextLoss> EvaluateTexts(const Gpt& model, const Tokenizer& tokenizer,
                               std::span<const PlacedText> texts, bool bos) {
  HEED_ASSIGN(const std::unique_ptr<WindowedLoss> loss, WindowedLoss::Create(model));
  HEED_ASSIGN(TextLoss result,
              Evaluate(tokenizer, texts, bos,
                       [&](std::span<const int32_t> tokens) { return loss->Sum(tokens); }));
  result.stride = model.config().block_size;
  return result;
}

Result<TextLoss> EvaluateTexts(const LanguageModel& model, std::span<const PlacedText> texts,
                               bool bos) {
  if (model.gpt) return EvaluateTexts(*model.gpt, **model.tokenizer, texts, bos);
  HEED_ASSIGN(TextLoss result,
              Evaluate(**model.tokenizer, texts, bos, [&](std::span<const int32_t> tokens) {
                return model.predictor->Loss(tokens);
              }));
  result.stride = 1;
  return result;
}

Result<TextLoss> EvaluateHeldOut(const LanguageModel& model, const DataSet& data) {
  const Tokenizer& tokenizer = *data.tokenizer;
  const BatchSource& source = *data.batches;
  TextLoss result;
  if (model.gpt) {
    const int64_t B = WindowsAtOnce(*model.gpt);
    HEED_ASSIGN(const auto activations,
                Activations::Create(*model.gpt, B, source.block(), /*training=*/false));
    const HeldOutLoss loss =
        MeasureHeldOut(*model.gpt, tokenizer, source, source.ValWindows(), B, activations.get());
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
