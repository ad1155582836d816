// The matrix product with its epilogues, as the definition says it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/args.h"
#include "kernels/reference/gelu.h"
#include "tensor/convert.h"

namespace heed::reference {

// A factor of a product, in bfloat16 if kBf16; a dual number is never rounded.
template <bool kBf16, class T>
T Factor(T x) {
  if constexpr (kBf16 && std::is_same_v<T, float>) return Bf16ToFloat(FloatToBf16(x));
  if constexpr (kBf16 && std::is_same_v<T, double>) return Bf16ToFloat(DoubleToBf16(x));
  return x;
}

// A with its rows rounded as Arithmetic::kInt8 says, [M, K].
template <class T>
std::vector<T> WholeRows(const MatmulArgs<T>& args) {
  constexpr float kSmallest = 0x1p-100f;
  std::vector<T> rounded(static_cast<size_t>(args.M * args.K));
  for (int64_t at = 0; at < args.M * args.K; at += kBlockNumbers) {
    const T* x = args.a + at / args.K * args.a_row + at % args.K;
    float largest = 0;
    bool finite = true;
    for (int64_t k = 0; k < kBlockNumbers; ++k) {
      const auto size = std::abs(static_cast<float>(static_cast<double>(x[k])));
      finite &= std::isfinite(size);
      largest = std::max(largest, size);
    }
    for (int64_t k = 0; k < kBlockNumbers; ++k) {
      const float q =
          std::nearbyint(static_cast<float>(static_cast<double>(x[k])) * (127 / largest));
      rounded[at + k] = !finite               ? T(std::numeric_limits<float>::quiet_NaN())
                        : largest < kSmallest ? T(0)
                                              : T(q) * T(largest / 127);
    }
  }
  return rounded;
}

template <bool kBf16, class T>
void MatmulOfFactors(const MatmulArgs<T>& args) {
  const auto factor = [](const T* x, const uint16_t* bf16, int64_t at) {
    return bf16 == nullptr ? Factor<kBf16>(x[at]) : T(Bf16ToFloat(bf16[at]));
  };
  const auto round = [](T x) {
    return FloatToBf16(static_cast<float>(static_cast<double>(Factor<true>(x))));
  };
  for (int64_t i = 0; i < args.M; ++i) {
    for (int64_t j = 0; j < args.N; ++j) {
      const int64_t at = i * args.ldc + j;
      T sum = args.accumulate ? args.c[at] : T(0);
      for (int64_t k = 0; k < args.K; ++k) {
        sum += factor(args.a, args.a_bf16, i * args.a_row + k * args.a_col) *
               factor(args.b, args.b_bf16, k * args.b_row + j * args.b_col);
      }
      if (args.bias != nullptr) sum += args.bias[j];
      switch (args.epilogue) {
        case Epilogue::kNone:
          if (args.residual != nullptr) sum += args.residual[at];
          if (args.c_bf16 != nullptr) {
            args.c_bf16[at] = round(sum);
          } else {
            args.c[at] = sum;
          }
          break;
        case Epilogue::kGelu:
          args.c[at] = sum;
          args.aux[at] = Gelu(sum);
          break;
        case Epilogue::kGeluBackward:
          args.c[at] = sum * GeluDerivative(args.aux[at]);
          args.aux[at] = Gelu(args.aux[at]);
          break;
        case Epilogue::kGeluAndSlope:
          args.c_bf16[at] = round(Gelu(sum));
          args.aux_bf16[at] = round(GeluDerivative(sum));
          break;
        case Epilogue::kTimes:
          args.c_bf16[at] = round(sum * T(Bf16ToFloat(args.aux_bf16[at])));
          break;
      }
    }
  }
}

template <class T>
void Matmul(const MatmulArgs<T>& args) {
  if (!args.packed.empty()) {
    std::vector<float> columns(static_cast<size_t>(args.N * args.K));
    for (int64_t j = 0; j < args.N; ++j) UnpackColumn(args.packed, j, &columns[j * args.K]);
    const std::vector<T> b(columns.begin(), columns.end());
    MatmulArgs<T> plain = args;
    plain.packed = {};
    plain.b = b.data();
    plain.b_row = 1;
    plain.b_col = args.K;
    if (args.arithmetic != Arithmetic::kInt8 || !args.packed.scaled()) return Matmul(plain);
    const std::vector<T> a = WholeRows(args);
    plain.a = a.data();
    plain.a_row = args.K;
    return Matmul(plain);
  }
  if (args.arithmetic == Arithmetic::kBf16) {
    MatmulOfFactors<true>(args);
  } else {
    MatmulOfFactors<false>(args);
  }
}

}  // namespace heed::reference
