// Random arrays and comparisons that tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace heed {

// n standard normal numbers times `scale`; another `stream` gives other numbers.
template <class T = float>
std::vector<T> RandomArray(int64_t n, uint32_t stream, double scale = 1.0) {
  std::vector<T> out(static_cast<size_t>(n));
  const RandomKey key{20261130, 0, stream};
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>(scale * static_cast<float>(RandomNormal(key, i)));
  }
  return out;
}

template <class To, class From>
std::vector<To> Cast(const std::vector<From>& from) {
  std::vector<To> out;
  out.reserve(from.size());
  for (const From& x : from) out.push_back(static_cast<To>(x));
  return out;
}

// The largest |got - want|, as a share of the largest |want|.
template <class A, class B>
double RelativeError(const std::vector<A>& got, const std::vector<B>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    // Written so that a NaN on either side is an error and not a pass.
    const double error = std::abs(g - w);
    if (!(error <= worst)) worst = std::isnan(error) ? HUGE_VAL : error;
    largest = std::max(largest, std::abs(w));
  }
  return largest == 0 ? worst : worst / largest;
}

}  // namespace heed
