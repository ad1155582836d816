// Tables of rotary angles (Su et al. 2021) and of sinusoidal positions (Vaswani et al. 2017),
// computed in double.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace heed {

// How rotary angles are stretched to contexts longer than those of pretraining. The names and the
// arithmetic are those of Hugging Face's rope_scaling.
enum class RopeStretch {
  kNone,
  kLinear,  // all frequencies divided by factor (Chen et al. 2023)
  kLlama3,  // long wavelengths divided by factor, short ones kept, a ramp between
  kYarn,    // the same by a count of rotations, and cos and sin scaled (Peng et al. 2023)
};

std::span<const EnumName<RopeStretch>> EnumNames(RopeStretch);

struct RopeScaling {
  RopeStretch rope_type = RopeStretch::kNone;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;      // positions of pretraining; llama3 and yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3: wavelengths in the original context
  double beta_fast = 32, beta_slow = 1;              // yarn: rotations in the original context
  double attention_factor = 0;  // yarn: of cos and sin; 0 stands for 0.1 ln(factor) + 1

  bool operator==(const RopeScaling&) const = default;
};

// theta^(-2i / rotary_dim), stretched; i in [0, rotary_dim / 2).
std::vector<double> RopeFrequencies(int64_t rotary_dim, double theta,
                                    const RopeScaling& scaling = {});

// What yarn multiplies cos and sin by; else 1.
double RopeMagnitude(const RopeScaling& scaling);

// cos and sin of (p + first) · frequency[i], times yarn's factor: [positions, rotary_dim / 2] each.
struct RopeTable {
  int64_t half = 0;
  std::vector<float> cos, sin;

  RopeTable() = default;
  RopeTable(int64_t positions, int64_t rotary_dim, double theta, int64_t first,
            const RopeScaling& scaling = {});
};

// [positions, C]: channels 2i and 2i + 1 are the sine and cosine of p · 10000^(-2i / C).
std::vector<float> SinusoidalTable(int64_t positions, int64_t C);

}  // namespace heed
