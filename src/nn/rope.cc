#include "nn/rope.h"

#include <cmath>

namespace heed {

RopeTable::RopeTable(int64_t positions, int64_t rotary_dim, double theta, int64_t first)
    : half(rotary_dim / 2), cos(positions * half), sin(positions * half) {
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p + first) * frequency;
      cos[p * half + i] = static_cast<float>(std::cos(angle));
      sin[p * half + i] = static_cast<float>(std::sin(angle));
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
