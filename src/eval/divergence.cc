#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

// logits [T, V].
Result<std::vector<float>> LogitsOf(const Gpt& model, const std::vector<int32_t>& tokens) {
  const auto T = static_cast<int64_t>(tokens.size());
  HEED_ASSIGN(const auto activations, Activations::Create(model, 1, T, /*training=*/false));
  const Pass pass = model.NewPass(1, T);
  const float* x = model.Forward(pass, tokens.data(), activations.get());
  std::vector<float> logits(static_cast<size_t>(T * model.config().vocab_size));
  model.Logits(pass, x, T, activations.get(), logits.data());
  return logits;
}

double LogSumExp(const float* logits, int64_t V) {
  const double largest = *std::max_element(logits, logits + V);
  double sum = 0;
  for (int64_t i = 0; i < V; ++i) sum += std::exp(logits[i] - largest);
  return largest + std::log(sum);
}

// Σ p (log p - log q) of the rows' distributions.
double Divergence(const float* a, const float* b, int64_t V) {
  const double norm_a = LogSumExp(a, V), norm_b = LogSumExp(b, V);
  double sum = 0;
  for (int64_t i = 0; i < V; ++i) {
    const double log_p = a[i] - norm_a;
    sum += std::exp(log_p) * (log_p - (b[i] - norm_b));
  }
  return std::max(sum, 0.0);  // rounding may leave less than nothing
}

}  // namespace

Result<LogitDifference> CompareModels(const Gpt& a, const Gpt& b,
                                      const std::vector<int32_t>& tokens) {
  HEED_ASSIGN(const std::vector<float> logits_a, LogitsOf(a, tokens));
  HEED_ASSIGN(const std::vector<float> logits_b, LogitsOf(b, tokens));
  LogitDifference result;
  for (size_t i = 0; i < logits_a.size(); ++i) {
    const double error = std::abs(double{logits_a[i]} - logits_b[i]);
    result.largest = std::isnan(error) ? HUGE_VAL : std::max(result.largest, error);
    result.largest_logit = std::max(result.largest_logit, std::abs(double{logits_a[i]}));
  }
  const int64_t V = a.config().vocab_size;
  for (size_t t = 0; t < tokens.size(); ++t) {
    result.divergence += Divergence(&logits_a[t * V], &logits_b[t * V], V);
  }
  result.divergence /= static_cast<double>(tokens.size());
  return result;
}

}  // namespace heed
