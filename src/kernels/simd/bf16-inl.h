// Pairs of bfloat16 in words, for the processors that multiply them (AVX-512 BF16). Highway 1.0.3
// has neither of the instructions, and their intrinsics would want every caller compiled for a
// target of its own. Included once per instruction set.

#if defined(HEED_KERNELS_SIMD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_BF16_INL_H_
#undef HEED_KERNELS_SIMD_BF16_INL_H_
#else
#define HEED_KERNELS_SIMD_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// A word holds two bfloat16 in storage of type float.
struct Bf16Pairs {
  using Tag = hwy::HWY_NAMESPACE::ScalableTag<float>;
  using Vec = hwy::HWY_NAMESPACE::Vec<Tag>;
  static constexpr int64_t kPerWord = 2;

  static bool Supported() {
    static const bool supported = __builtin_cpu_supports("avx512bf16");
    return supported;
  }

  // sum + a.high · b.high + a.low · b.low
  static HWY_INLINE Vec MulAdd(Vec a, Vec b, Vec sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }

  // The bfloat16 of `low` in the lower half of the vector, those of `high` in the upper one: where
  // they are 32 numbers in a row, words of neighbours.
  static HWY_INLINE Vec Round(Vec low, Vec high) {
    Vec out;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out.raw) : "v"(high.raw), "v"(low.raw));
    return out;
  }

  // Words (low[i], high[i]).
  static HWY_INLINE Vec Interleave(Vec low, Vec high) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const Vec both = Round(low, high);
    const auto order = _mm512_load_si512(kOrder);
    return Vec{_mm512_castsi512_ps(_mm512_permutexvar_epi16(order, _mm512_castps_si512(both.raw)))};
  }
};
#endif

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_BF16_INL_H_
