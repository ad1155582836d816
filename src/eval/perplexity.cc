#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

namespace heed {
namespace {

// Positions in a batch of windows.
constexpr int64_t kBatchPositions = 4096;

// The loss of tokens[1..] given what stands before each in its window, summed.
double SumOfLosses(const Gpt& model, std::span<const int32_t> tokens, int64_t windows_at_once,
                   Activations* activations) {
  const int64_t T = model.config().block_size;
  const auto predicted = static_cast<int64_t>(tokens.size()) - 1;
  double sum = 0;
  for (int64_t at = 0; at < predicted;) {
    const int64_t whole = (predicted - at) / T;
    const Pass pass = whole > 0 ? model.NewPass(std::min(whole, windows_at_once), T)
                                : model.NewPass(1, predicted - at);
    // Windows lie one behind another, so their targets do too, one token further.
    sum += model.Loss(pass, tokens.data() + at, tokens.data() + at + 1, activations);
    at += pass.rows();
  }
  return sum;
}

}  // namespace

Result<TextLoss> EvaluateTexts(const Gpt& model, const Tokenizer& tokenizer,
                               std::span<const PlacedText> texts, bool bos) {
  const int64_t T = model.config().block_size;
  const int64_t windows_at_once = std::max<int64_t>(1, kBatchPositions / T);
  HEED_ASSIGN(const std::unique_ptr<Activations> activations,
              Activations::Create(model, windows_at_once, T, /*training=*/false));
  TextLoss result;
  result.stride = T;
  double sum = 0;
  for (const auto& [text, place] : texts) {
    HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(text, place));
    if (bos) tokens = tokenizer.WithBos(std::move(tokens));
    result.bytes += static_cast<int64_t>(text.size());
    if (tokens.size() < 2) continue;
    sum += SumOfLosses(model, tokens, windows_at_once, activations.get());
    result.tokens += static_cast<int64_t>(tokens.size()) - 1;
  }
  if (result.tokens == 0) {
    return Fail(ErrorKind::kFormat, texts.empty() ? "text" : texts.back().place.name,
                fmt::format("{} bytes", result.bytes),
                "at least 2 tokens, so that one can be predicted");
  }
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.bits_per_byte =
      sum / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(1, result.bytes));
  return result;
}

}  // namespace heed
