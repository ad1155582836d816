// Dual numbers: a + b·e with e² = 0. Running a forward kernel on them gives its directional
// derivative exact to rounding, with no step size to choose.
#pragma once

#include <cmath>

namespace heed {

struct Dual {
  double value = 0;
  double slope = 0;

  Dual() = default;
  Dual(double v) : value(v) {}  // NOLINT: constants mix freely
  Dual(double v, double s) : value(v), slope(s) {}

  Dual operator-() const { return {-value, -slope}; }
  Dual& operator+=(Dual b) { return *this = Dual(value + b.value, slope + b.slope); }
  Dual& operator-=(Dual b) { return *this = Dual(value - b.value, slope - b.slope); }
  Dual& operator*=(Dual b) {
    return *this = Dual(value * b.value, value * b.slope + slope * b.value);
  }
  Dual& operator/=(Dual b) {
    return *this = Dual(value / b.value, (slope - value / b.value * b.slope) / b.value);
  }
  friend Dual operator+(Dual a, Dual b) { return a += b; }
  friend Dual operator-(Dual a, Dual b) { return a -= b; }
  friend Dual operator*(Dual a, Dual b) { return a *= b; }
  friend Dual operator/(Dual a, Dual b) { return a /= b; }
  friend bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend bool operator==(Dual a, Dual b) { return a.value == b.value; }
  explicit operator double() const { return value; }
};

inline Dual exp(Dual a) { return {std::exp(a.value), std::exp(a.value) * a.slope}; }
inline Dual log(Dual a) { return {std::log(a.value), a.slope / a.value}; }
inline Dual tanh(Dual a) {
  const double t = std::tanh(a.value);
  return {t, (1 - t * t) * a.slope};
}
inline Dual sqrt(Dual a) {
  const double r = std::sqrt(a.value);
  return {r, a.slope / (2 * r)};
}

}  // namespace heed
