#include "kernels/simd/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

void Add(float* y, const float* x, int64_t n) {
  const Split split = SplitNumbers(n);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    float* to = y + split.begin(piece);
    const float* from = x + split.begin(piece);
    ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Add(lanes.Load(to + i), lanes.Load(from + i)), to + i);
    });
  });
}

// sums [C] = column sums of `rows` rows, four vectors of columns at a time in registers.
template <class Number>
void SumRows(const Number* x, int64_t rows, size_t C, int64_t ld, float* sums) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
  size_t c = 0;
  for (; c + 4 * N <= C; c += 4 * N) {
    FloatVec sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t r = 0; r < rows; ++r) {
      const Number* row = x + r * ld + c;
      for (size_t u = 0; u < 4; ++u) sum[u] = hn::Add(sum[u], Whole().Load(row + u * N));
    }
    for (size_t u = 0; u < 4; ++u) hn::StoreU(sum[u], d, sums + c + u * N);
  }
  ForVectors(C - c, [&](size_t i, auto lanes) HWY_ATTR {
    FloatVec sum = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) sum = hn::Add(sum, lanes.Load(x + r * ld + c + i));
    lanes.Store(sum, sums + c + i);
  });
}

template <class Number>
void SumColumns(const Number* x, int64_t rows, int64_t C, int64_t ld, float* out, bool accumulate) {
  const Split split = SplitRows(rows, C, kMostPartials);
  float* partials = reinterpret_cast<float*>(Scratch(split.pieces * C * sizeof(float)));
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    SumRows(x + split.begin(piece) * ld, split.length(piece), C, ld, partials + piece * C);
  });
  ForVectors(C, [&](size_t i, auto lanes) HWY_ATTR {
    FloatVec sum = hn::Zero(FloatTag());
    for (int64_t p = 0; p < split.pieces; ++p) {
      sum = hn::Add(sum, lanes.Load(partials + p * C + i));
    }
    if (accumulate) sum = hn::Add(sum, lanes.Load(out + i));
    lanes.Store(sum, out + i);
  });
}

void ColumnSum(const float* x, int64_t rows, int64_t C, int64_t ld, float* out, bool accumulate) {
  SumColumns(x, rows, C, ld, out, accumulate);
}
void ColumnSumBf16(const uint16_t* x, int64_t rows, int64_t C, int64_t ld, float* out,
                   bool accumulate) {
  SumColumns(x, rows, C, ld, out, accumulate);
}

double SumSquaresOf(const float* x, size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const size_t N = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  const auto add = [&](auto& sum, size_t i) HWY_ATTR {
    const auto v = hn::PromoteTo(d, hn::LoadU(half, x + i));
    sum = hn::MulAdd(v, v, sum);
  };
  size_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    add(sum0, i);
    add(sum1, i + N);
    add(sum2, i + 2 * N);
    add(sum3, i + 3 * N);
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * x[i];
  const auto all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return hn::GetLane(hn::SumOfLanes(d, all)) + rest;
}

double SumSquares(const float* x, int64_t n) {
  const Split split = SplitNumbers(n);
  double* partials = reinterpret_cast<double*>(Scratch(split.pieces * sizeof(double)));
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    partials[piece] = SumSquaresOf(x + split.begin(piece), split.length(piece));
  });
  double sum = 0;
  for (int64_t piece = 0; piece < split.pieces; ++piece) sum += partials[piece];
  return sum;
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(Add);
HWY_EXPORT(ColumnSum);
HWY_EXPORT(ColumnSumBf16);
HWY_EXPORT(SumSquares);

void Add(float* y, const float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Add)(y, x, n); }
void ColumnSum(const float* x, int64_t rows, int64_t C, int64_t ld, float* out, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(ColumnSum)(x, rows, C, ld, out, accumulate);
}
void ColumnSumBf16(const uint16_t* x, int64_t rows, int64_t C, int64_t ld, float* out,
                   bool accumulate) {
  HWY_DYNAMIC_DISPATCH(ColumnSumBf16)(x, rows, C, ld, out, accumulate);
}
double SumSquares(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumSquares)(x, n); }

}  // namespace heed::simd
#endif  // HWY_ONCE
