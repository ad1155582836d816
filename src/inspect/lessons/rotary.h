// Rotation of single vectors by the reference kernel, for the lessons.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/reference/rope.h"

namespace heed {

// x [D] turned at `position`, pair i by position · angles[i] radians.
inline std::vector<double> Turned(std::vector<double> x, double position,
                                  const std::vector<double>& angles, bool interleaved = false) {
  std::vector<double> cos, sin;
  for (const double angle : angles) {
    cos.push_back(std::cos(position * angle));
    sin.push_back(std::sin(position * angle));
  }
  const auto D = static_cast<int64_t>(x.size());
  reference::Rope<double>({.B = 1,
                           .T_ = 1,
                           .heads = 1,
                           .D = D,
                           .half = static_cast<int64_t>(angles.size()),
                           .interleaved = interleaved,
                           .x = x.data(),
                           .row = D,
                           .cos = cos.data(),
                           .sin = sin.data()});
  return x;
}

inline double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The angles of one step, theta^(-2i / D) for i = 0 .. D/2 - 1 (Su et al. 2021).
inline std::vector<double> RotaryAngles(int64_t D, double theta) {
  std::vector<double> angles;
  for (int64_t i = 0; i < D / 2; ++i) {
    angles.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D)));
  }
  return angles;
}

}  // namespace heed
