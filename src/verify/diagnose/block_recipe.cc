#include "verify/diagnose/block_recipe.h"

#include <numbers>

#include "tensor/convert.h"

namespace heed {
namespace {

double ErfForm(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double TanhForm(double x) {
  return 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

double RoundTo(DType dtype, double value) {
  std::byte bytes[sizeof(double)];
  Encode(dtype, &value, 1, bytes);
  Decode(dtype, bytes, 1, &value);
  return value;
}

double NormApply(const NormChoice& choice, const Moments& moments, double x, double gain,
                 double bias) {
  double y = (x - moments.mean) * moments.rstd;
  if (choice.cast == NormCast::kBeforeGain) y = RoundTo(choice.cast_type, y);
  if (choice.gain) y *= gain + choice.gain_offset;
  return choice.bias ? y + bias : y;
}

std::vector<double> NormRows(const NormChoice& choice, const std::vector<double>& x,
                             const std::vector<double>& gain, const std::vector<double>& bias) {
  const size_t C = gain.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += C) {
    const Moments moments =
        MomentsOf(choice, static_cast<int64_t>(C), [&](int64_t c) { return x[row + c]; });
    for (size_t c = 0; c < C; ++c) {
      y[row + c] = NormApply(choice, moments, x[row + c], gain[c], bias.empty() ? 0 : bias[c]);
    }
  }
  return y;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return x * TanhForm(x);
    case Activation::kGeluErf:
      return x * ErfForm(x);
    case Activation::kGeluSigmoid:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kGeluNoFactor:
      return TanhForm(x);
    case Activation::kGeluErfNoFactor:
      return ErfForm(x);
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kIdentity:
      break;
  }
  return x;
}

double Hidden(Gate gate, Activation activation, double up, double gated) {
  switch (gate) {
    case Gate::kNone:
    case Gate::kUpAlone:
      return Activate(activation, up);
    case Gate::kGate:
      return Activate(activation, gated) * up;
    case Gate::kUp:
      return Activate(activation, up) * gated;
    case Gate::kProduct:
      return Activate(activation, gated * up);
    case Gate::kGateAlone:
      break;
  }
  return Activate(activation, gated);
}

}  // namespace heed
