// GELU in its tanh form (Hendrycks, Gimpel 2016), and its derivative.
#pragma once

#include <cmath>

namespace heed::reference {

// u = sqrt(2/pi)·(x + 0.044715 x³)
template <class T>
T GeluInner(T x) {
  return T(0.7978845608028654) * (x + T(0.044715) * x * x * x);
}

// gelu(x) = x/2·(1 + tanh u)
template <class T>
T Gelu(T x) {
  using std::tanh;
  return T(0.5) * x * (T(1) + tanh(GeluInner(x)));
}

// gelu'(x) = (1 + tanh u)/2 + x/2·(1 - tanh² u)·u'
template <class T>
T GeluDerivative(T x) {
  using std::tanh;
  const T t = tanh(GeluInner(x));
  const T du = T(0.7978845608028654) * (T(1) + T(3 * 0.044715) * x * x);
  return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du;
}

}  // namespace heed::reference
