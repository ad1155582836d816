// Tables of rotary angles (Su et al. 2021) and of sinusoidal positions (Vaswani et al. 2017),
// computed in double.
#pragma once

#include <cstdint>
#include <vector>

namespace heed {

// cos and sin of (p + first) · theta^(-2i / rotary_dim): [positions, rotary_dim / 2] each.
struct RopeTable {
  int64_t half = 0;
  std::vector<float> cos, sin;

  RopeTable() = default;
  RopeTable(int64_t positions, int64_t rotary_dim, double theta, int64_t first);
};

// [positions, C]: channels 2i and 2i + 1 are the sine and cosine of p · 10000^(-2i / C).
std::vector<float> SinusoidalTable(int64_t positions, int64_t C);

}  // namespace heed
