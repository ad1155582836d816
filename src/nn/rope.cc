#include "nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heed {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double Llama3(double frequency, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_max_position_embeddings) * frequency / kTurn;
  const double kept =
      std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / s.factor);
}

// The pair of channels that turns `rotations` times in the original context.
double YarnPair(double rotations, int64_t rotary_dim, double theta, const RopeScaling& s) {
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  return static_cast<double>(rotary_dim) * std::log(context / (rotations * kTurn)) /
         (2 * std::log(theta));
}

// `frequencies` between those divided by factor and those kept, on a ramp over the pairs.
void Yarn(int64_t rotary_dim, double theta, const RopeScaling& s,
          std::vector<double>* frequencies) {
  const double last = static_cast<double>(rotary_dim) - 1;
  const double low = std::max(std::floor(YarnPair(s.beta_fast, rotary_dim, theta, s)), 0.0);
  const double high = std::min(std::ceil(YarnPair(s.beta_slow, rotary_dim, theta, s)), last);
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
    (*frequencies)[i] *= 1 - ramp + ramp / s.factor;
  }
}

}  // namespace

double RopeMagnitude(const RopeScaling& s) {
  if (s.rope_type != RopeStretch::kYarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

std::span<const EnumName<RopeStretch>> EnumNames(RopeStretch) {
  static constexpr EnumName<RopeStretch> kNames[] = {{RopeStretch::kNone, "default"},
                                                     {RopeStretch::kLinear, "linear"},
                                                     {RopeStretch::kLlama3, "llama3"},
                                                     {RopeStretch::kYarn, "yarn"}};
  return kNames;
}

std::vector<double> RopeFrequencies(int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  std::vector<double> frequencies(rotary_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    if (scaling.rope_type == RopeStretch::kLinear) frequency /= scaling.factor;
    if (scaling.rope_type == RopeStretch::kLlama3) frequency = Llama3(frequency, scaling);
  }
  if (scaling.rope_type == RopeStretch::kYarn) Yarn(rotary_dim, theta, scaling, &frequencies);
  return frequencies;
}

RopeTable::RopeTable(int64_t positions, int64_t rotary_dim, double theta, int64_t first,
                     const RopeScaling& scaling)
    : half(rotary_dim / 2), cos(positions * half), sin(positions * half) {
  const std::vector<double> frequencies = RopeFrequencies(rotary_dim, theta, scaling);
  const double magnitude = RopeMagnitude(scaling);
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p + first) * frequencies[i];
      cos[p * half + i] = static_cast<float>(magnitude * std::cos(angle));
      sin[p * half + i] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
}

std::vector<float> SinusoidalTable(int64_t positions, int64_t C) {
  std::vector<float> table(positions * C);
  for (int64_t c = 0; c < C; ++c) {
    const double frequency =
        std::pow(10000.0, -static_cast<double>(c - c % 2) / static_cast<double>(C));
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      table[p * C + c] = static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

}  // namespace heed
