// The product of operands rounded to bfloat16, summed in float32.
#include <bit>

#include "kernels/simd/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/matmul_bf16.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/simd/bf16-inl.h"
#include "kernels/simd/row_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_AVX3
struct PairEngine : Bf16Pairs {
  static constexpr bool kInPlace = false;
  static constexpr bool kPackedWords = true;
  static constexpr bool kRounds = true;

  // The first min(n, lanes) of x as bfloat16.
  static HWY_INLINE void Store(V x, uint16_t* HWY_RESTRICT to, int64_t n) {
    const hn::Half<D> half;
    const auto halves = hn::LowerHalf(half, Round(x, x));
    if (n >= kLanes) return hn::StoreU(halves, half, reinterpret_cast<float*>(to));
    alignas(64) uint16_t lanes[kLanes];
    hn::Store(halves, half, reinterpret_cast<float*>(lanes));
    std::memcpy(to, lanes, n * sizeof(*to));
  }

  // words[w] = (src[2w], src[2w + 1]) for 2w < K.
  static void Line(const float* src, int64_t K, float* HWY_RESTRICT words) {
    const D d;
    int64_t k = 0;
    for (; k + 2 * kLanes <= K; k += 2 * kLanes) {
      hn::StoreU(Round(hn::LoadU(d, src + k), hn::LoadU(d, src + k + kLanes)), d, words + k / 2);
    }
    if (k == K) return;
    const V high = K - k > kLanes ? LoadFirst(d, src + k + kLanes, K - k - kLanes) : hn::Zero(d);
    StoreFirst(Round(LoadFirst(d, src + k, K - k), high), d, words + k / 2, DivideUp(K - k, 2));
  }
  static void Line(const uint16_t* src, int64_t K, float* HWY_RESTRICT words) {
    std::memcpy(words, src, K * sizeof(*src));
  }

  static void Pack(const float* src, int64_t step, int64_t k_step, int64_t count, int64_t K,
                   int64_t width, float* HWY_RESTRICT panel, const float* = nullptr) {
    if (step == 1) {
      PackRows(src, k_step, count, K, width, panel);
    } else {
      PackColumns(src, step, count, K, width, panel);
    }
  }

  // The same from bfloat16. Along the lines they are words as they lie.
  static void Pack(const uint16_t* src, int64_t step, int64_t k_step, int64_t count, int64_t K,
                   int64_t width, float* HWY_RESTRICT panel, const uint16_t* ahead = nullptr) {
    if (step == 1) return PackRows(src, k_step, count, K, width, panel);
    FloatEngine::Pack(reinterpret_cast<const float*>(src), step / 2, 1, count, K / 2, width, panel,
                      reinterpret_cast<const float*>(ahead));
  }

 private:
  // Interleaves pairs of rows of numbers.
  static void PackRows(const float* src, int64_t k_step, int64_t count, int64_t K, int64_t width,
                       float* HWY_RESTRICT panel) {
    const D d;
    for (int64_t k = 0; k < K; k += 2, panel += width) {
      const float* row = src + k * k_step;
      for (int64_t n = 0; n < width; n += kLanes) {
        V low = hn::Zero(d), high = hn::Zero(d);
        if (n < count) low = LoadFirst(d, row + n, count - n);
        if (n < count && k + 1 < K) high = LoadFirst(d, row + k_step + n, count - n);
        hn::StoreU(Interleave(low, high), d, panel + n);
      }
    }
  }

  static void PackRows(const uint16_t* src, int64_t k_step, int64_t count, int64_t K, int64_t width,
                       float* HWY_RESTRICT panel) {
    for (int64_t k = 0; k < K; k += 2, panel += width) {
      const uint16_t* low = src + k * k_step;
      const __mmask16 second = k + 1 < K ? 0xffff : 0;
      for (int64_t n = 0; n < width; n += kLanes) {
        const auto some = static_cast<__mmask16>((1u << std::clamp<int64_t>(count - n, 0, 16)) - 1);
        const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, low + n));
        const __m512i b =
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some & second, low + k_step + n));
        _mm512_storeu_si512(panel + n, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
      }
    }
  }

  // Rounds some lines of numbers, which makes them lines of words, and transposes those.
  static void PackColumns(const float* src, int64_t step, int64_t count, int64_t K, int64_t width,
                          float* HWY_RESTRICT panel) {
    constexpr int64_t kLineWords = 512;
    alignas(64) float buffer[kNarrow][kLineWords];
    const float* lines[kNarrow];
    for (int64_t i = 0; i < kNarrow; ++i) lines[i] = buffer[std::min(i, count - 1)];
    for (int64_t k = 0; k < K; k += 2 * kLineWords, panel += kLineWords * width) {
      const int64_t numbers = std::min(2 * kLineWords, K - k);
      for (int64_t n = 0; n < width; n += kNarrow) {
        for (int64_t i = 0; i < std::min<int64_t>(kNarrow, count - n); ++i) {
          Line(src + (n + i) * step + k, numbers, buffer[i]);
        }
        PackLines(lines, DivideUp(numbers, 2), width, panel + n);
      }
    }
  }
};
#endif

// ---- One row of A and a packed B: bound by memory, so panels are read side by side, as many
// chains as hide a multiply-add's time, and the next ones are asked for meanwhile.

constexpr int kRowPanels = 4;

#if HWY_TARGET == HWY_AVX3
template <int kPanels>
void RowTile(const PackedB& b, int64_t panel, const float* HWY_RESTRICT a,
             float* HWY_RESTRICT out) {
  const D d;
  const int64_t step = b.words() * kPanelColumns;
  const float* words = reinterpret_cast<const float*>(b.Panel(panel));
  V sum[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) sum[p] = hn::Zero(d);
  for (int64_t w = 0; w < b.words(); ++w, words += kPanelColumns) {
    const V x = hn::Set(d, a[w]);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      __builtin_prefetch(words + (kPanels + p) * step, 0, 2);
      sum[p] = PairEngine::MulAdd(x, hn::LoadU(d, words + p * step), sum[p]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) hn::StoreU(sum[p], d, out + p * kPanelColumns);
}

// False when there is no memory for the row.
bool RowProduct(const MatmulArgs<>& args) {
  const PackedB& b = args.packed;
  float* a = Scratch(RoundUp(b.words(), kCacheLine));
  if (a == nullptr) return false;
  PairEngine::Line(args.a, args.K, a);
  const int64_t panels = kRowPanels * std::clamp<int64_t>(args.N / 1024, 1, 8);
  Run(2.0 * args.N * args.K, DivideUp(b.panels(), panels), [&](int64_t piece) {
    alignas(64) float sums[kRowPanels * kPanelColumns];
    const int64_t end = std::min(b.panels(), (piece + 1) * panels);
    for (int64_t panel = piece * panels; panel < end;) {
      const bool all = panel + kRowPanels <= end;
      const int64_t j = panel * kPanelColumns, count = all ? kRowPanels : 1;
      all ? RowTile<kRowPanels>(b, panel, a, sums) : RowTile<1>(b, panel, a, sums);
      Finish<PairEngine>(args, sums, 0, 0, 1, j, std::min(count * kPanelColumns, args.N - j));
      panel += count;
    }
  });
  return true;
}
#endif

#if HWY_TARGET == HWY_AVX3
// ---- Some rows of A and a B that waits in its file: its rows are rows of words as they stand.

struct WordEngine : FloatEngine {
  static constexpr int64_t kNumbers = 2;

  static HWY_INLINE V MulAdd(V a, V b, V sum) { return PairEngine::MulAdd(a, b, sum); }
  static HWY_INLINE NarrowVec NarrowMulAdd(NarrowVec a, NarrowVec b, NarrowVec sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
};

bool IsInWords(const PackedB& b) {
  const bool aligned = reinterpret_cast<uintptr_t>(b.rows) % alignof(float) == 0;
  return b.waits() && !b.scaled() && b.K % 2 == 0 && aligned;
}

// False when there is no memory for the words of A.
bool WordProduct(const MatmulArgs<>& args) {
  MatmulArgs<> product = args;
  product.K = args.K / 2;
  float* words = Scratch(args.M * product.K);
  if (words == nullptr) return false;
  for (int64_t i = 0; i < args.M; ++i) {
    PairEngine::Line(args.a + i * args.a_row, args.K, words + i * product.K);
  }
  product.a = words;
  product.a_row = product.b_col = product.K;
  product.b = reinterpret_cast<const float*>(args.packed.rows);
  product.b_row = 1;
  product.packed = {};
  args.M == 1 ? DenseRowProduct<WordEngine>(product) : DirectMatmul<WordEngine>(product);
  return true;
}
#endif

// A bfloat16 as a float, for processors without such instructions.
struct RoundedEngine {
  static constexpr int64_t kPerWord = 1;
  static constexpr bool kInPlace = false;
  static constexpr bool kPackedWords = false;
  static constexpr bool kRounds = true;

  static HWY_INLINE V MulAdd(V a, V b, V sum) { return hn::MulAdd(a, b, sum); }

  static HWY_INLINE V Round(V x) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, x), upper = hn::Set(du, 0xffff0000u);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    // A NaN's rounding could carry into infinity; it becomes quiet instead.
    const auto quiet = hn::BitCast(d, hn::Or(bits, hn::Set(du, 0x400000)));
    const auto out = hn::IfThenElse(hn::IsNaN(x), quiet, hn::BitCast(d, rounded));
    return hn::And(out, hn::BitCast(d, upper));
  }

  static HWY_INLINE void Store(V x, uint16_t* HWY_RESTRICT to, int64_t n) {
    const hn::RebindToUnsigned<D> du;
    alignas(64) uint32_t words[kLanes];
    hn::Store(hn::BitCast(du, Round(x)), du, words);
    for (int64_t i = 0; i < std::min<int64_t>(n, kLanes); ++i) to[i] = words[i] >> 16;
  }

  // `words` may be src.
  static void Line(const float* src, int64_t K, float* words) {
    for (int64_t k = 0; k < K; k += kLanes) {
      StoreFirst(Round(LoadFirst(D(), src + k, K - k)), D(), words + k, K - k);
    }
  }

  static void Pack(const float* src, int64_t step, int64_t k_step, int64_t count, int64_t K,
                   int64_t width, float* HWY_RESTRICT panel, const float* ahead = nullptr) {
    FloatEngine::Pack(src, step, k_step, count, K, width, panel, ahead);
    Line(panel, K * width, panel);
  }

  // The same from bfloat16.
  static void Line(const uint16_t* src, int64_t K, float* HWY_RESTRICT words) {
    for (int64_t k = 0; k < K; k += kLanes) {
      StoreFirst(LoadBf16(src + k, K - k), D(), words + k, K - k);
    }
  }
  static void Pack(const uint16_t* src, int64_t step, int64_t k_step, int64_t count, int64_t K,
                   int64_t width, float* HWY_RESTRICT panel, const uint16_t* = nullptr) {
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t n = 0; n < width; ++n) {
        const uint32_t bits = n < count ? src[n * step + k * k_step] : 0u;
        panel[k * width + n] = std::bit_cast<float>(bits << 16);
      }
    }
  }
};

}  // namespace

void MatmulBf16Target(const MatmulArgs<>& args) {
#if HWY_TARGET == HWY_AVX3
  if (PairEngine::Supported()) {
    const bool row = args.M == 1 && args.packed.data != nullptr && !args.packed.scaled();
    if (row && RowProduct(args)) return;
    if (IsInWords(args.packed) && args.M <= 4 * kRows && WordProduct(args)) return;
    return Multiply<PairEngine>(args);
  }
#endif
  Multiply<RoundedEngine>(args);
}

double MultiplyAddsBf16Target(int64_t rounds) {
#if HWY_TARGET == HWY_AVX3
  if (PairEngine::Supported()) return MultiplyAdds<PairEngine>(rounds);
#endif
  return MultiplyAdds<RoundedEngine>(rounds);
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(MatmulBf16Target);
HWY_EXPORT(MultiplyAddsBf16Target);

void MatmulBf16(const MatmulArgs<>& args) { HWY_DYNAMIC_DISPATCH(MatmulBf16Target)(args); }
double MultiplyAddsBf16(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAddsBf16Target)(rounds);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
