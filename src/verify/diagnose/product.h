// Products of matrices with sums in double, for replays.
#pragma once

#include <cstdint>
#include <span>

namespace heed {

// c [M, N] += a [M, K] · bᵀ of b [N, K].
void AddProduct(std::span<const double> a, std::span<const double> b, int64_t M, int64_t N,
                int64_t K, std::span<double> c);
// The same with b as a model holds it; a float's products and sums are those of the double that it
// is.
void AddProduct(std::span<const double> a, std::span<const float> b, int64_t M, int64_t N,
                int64_t K, std::span<double> c);

}  // namespace heed
