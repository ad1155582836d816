// Products of matrices in double, for replays.
#pragma once

#include <cstdint>
#include <vector>

namespace heed {

// c [M, N] += a [M, K] · b, where b is [K, N], or [N, K] when `b_turned`.
void AddProduct(const std::vector<double>& a, const std::vector<double>& b, bool b_turned,
                int64_t M, int64_t N, int64_t K, std::vector<double>* c);

}  // namespace heed
