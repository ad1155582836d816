// The matrix product with its epilogues, as the definition says it.
#pragma once

#include <cstdint>
#include <type_traits>

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

template <bool kBf16, class T>
void MatmulOfFactors(const MatmulArgs<T>& args) {
  for (int64_t i = 0; i < args.M; ++i) {
    for (int64_t j = 0; j < args.N; ++j) {
      const int64_t at = i * args.ldc + j;
      T sum = args.accumulate ? args.c[at] : T(0);
      for (int64_t k = 0; k < args.K; ++k) {
        sum += Factor<kBf16>(args.a[i * args.a_row + k * args.a_col]) *
               Factor<kBf16>(args.b[k * args.b_row + j * args.b_col]);
      }
      if (args.bias != nullptr) sum += args.bias[j];
      switch (args.epilogue) {
        case Epilogue::kNone:
          if (args.residual != nullptr) sum += args.residual[at];
          args.c[at] = sum;
          break;
        case Epilogue::kGelu:
          args.c[at] = sum;
          args.aux[at] = Gelu(sum);
          break;
        case Epilogue::kGeluBackward:
          args.c[at] = sum * GeluDerivative(args.aux[at]);
          args.aux[at] = Gelu(args.aux[at]);
          break;
      }
    }
  }
}

template <class T>
void Matmul(const MatmulArgs<T>& args) {
  if (args.arithmetic == Arithmetic::kBf16) {
    MatmulOfFactors<true>(args);
  } else {
    MatmulOfFactors<false>(args);
  }
}

}  // namespace heed::reference
