#include "kernels/simd/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "base/parallel.h"
#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/split.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

// A row's mean is kept as a float; far from 0 that rounds away digits which the differences x -
// mean still have. `rest` is their mean: the row's true mean is mean + rest.
struct Moments {
  float mean = 0, rest = 0, rstd = 0;
};

double Mean(const float* x, size_t C) {
  double sum;
  SumVectors<1>(C, &sum, [&](size_t i, auto lanes, FloatVec* sums) HWY_ATTR {
    sums[0] = hn::Add(sums[0], lanes.Load(x + i));
  });
  return sum / static_cast<double>(C);
}

// The rest of a row's mean alone. Two sums, the second idle, are added in the order of
// FindVariance, so that y recomputed has the bits of y.
double Rest(const float* x, size_t C, float mean) {
  const FloatVec shift = Set(mean);
  double sums[2];
  SumVectors<2>(C, sums, [&](size_t i, auto lanes, FloatVec* s) HWY_ATTR {
    s[0] = hn::Add(s[0], hn::Sub(lanes.Load(x + i), shift));
  });
  return sums[0] / static_cast<double>(C);
}

// The variance from the differences to the mean, over a row that the first pass left in the cache.
void FindVariance(const NormArgs<>& args, const float* x, Moments* row) {
  const double C = static_cast<double>(args.C);
  const FloatVec mean = Set(row->mean);
  double sums[2];
  SumVectors<2>(args.C, sums, [&](size_t i, auto lanes, FloatVec* s) HWY_ATTR {
    const FloatVec d = hn::Sub(lanes.Load(x + i), mean);
    s[0] = hn::Add(s[0], d);
    s[1] = hn::MulAdd(d, d, s[1]);
  });
  const double rest = args.rms ? 0 : sums[0] / C;
  row->rest = static_cast<float>(rest);
  row->rstd = static_cast<float>(1.0 / std::sqrt(sums[1] / C - rest * rest + args.eps));
}

void ApplyRow(const NormArgs<>& args, const float* x, const Moments& row, float* y) {
  const FloatVec mean = Set(row.mean), rest = Set(row.rest), rstd = Set(row.rstd);
  const auto scaled = [&](size_t i, auto lanes) HWY_ATTR {
    return hn::Mul(hn::Sub(hn::Sub(lanes.Load(x + i), mean), rest), rstd);
  };
  if (args.bias == nullptr) {
    ForVectors(args.C, [&](size_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Mul(scaled(i, lanes), lanes.Load(args.gain + i)), y + i);
    });
  } else {
    ForVectors(args.C, [&](size_t i, auto lanes) HWY_ATTR {
      lanes.Store(
          hn::MulAdd(scaled(i, lanes), lanes.Load(args.gain + i), lanes.Load(args.bias + i)),
          y + i);
    });
  }
}

// Rows that go through each step together: one row's sums, roots and quotients hide behind the
// others' loads.
constexpr int64_t kRows = 4;

// body(first, count) for up to kRows rows at a time.
template <class Body>
void ForRows(const NormArgs<>& args, const Body& body) {
  const Split split = SplitRows(args.rows, args.C);
  ParallelFor(split.pieces, [&](int64_t piece) {
    for (int64_t r = split.begin(piece); r < split.end(piece); r += kRows) {
      body(r, std::min(kRows, split.end(piece) - r));
    }
  });
}

// ---- Narrow rows, one in each lane.

constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());

// body(r, lanes) for as many rows from r on as there are lanes.
template <class Body>
void ForRowLanes(const NormArgs<>& args, const Body& body) {
  const Split split = SplitRows(args.rows, args.C);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    const int64_t begin = split.begin(piece);
    ForVectors(split.length(piece), [&](size_t i, auto lanes) HWY_ATTR { body(begin + i, lanes); });
  });
}

HWY_INLINE FloatVec SumColumns(const float* columns, size_t C) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  for (size_t c = 0; c < C; ++c) sum = hn::Add(sum, hn::Load(d, columns + c * hn::Lanes(d)));
  return sum;
}

// columns [C, N] lose their mean, and then what rounding left of it, which is returned.
HWY_INLINE FloatVec Centre(float* columns, size_t C, FloatVec mean) {
  const FloatTag d;
  const size_t N = hn::Lanes(d);
  for (size_t c = 0; c < C; ++c) {
    hn::Store(hn::Sub(hn::Load(d, columns + c * N), mean), d, columns + c * N);
  }
  const FloatVec rest = hn::Div(SumColumns(columns, C), Set(static_cast<float>(C)));
  for (size_t c = 0; c < C; ++c) {
    hn::Store(hn::Sub(hn::Load(d, columns + c * N), rest), d, columns + c * N);
  }
  return rest;
}

// y of rows from their centred columns, which are used up.
template <class Lanes>
HWY_INLINE void ApplyColumns(const NormArgs<>& args, int64_t r, Lanes lanes, FloatVec rstd,
                             float* columns) {
  const FloatTag d;
  const size_t C = args.C, N = hn::Lanes(d);
  for (size_t c = 0; c < C; ++c) {
    const FloatVec xhat = hn::Mul(hn::Load(d, columns + c * N), rstd);
    const FloatVec gain = Set(args.gain[c]);
    hn::Store(
        args.bias == nullptr ? hn::Mul(xhat, gain) : hn::MulAdd(xhat, gain, Set(args.bias[c])), d,
        columns + c * N);
  }
  WriteColumns(columns, lanes.count(), C, args.y + r * C);
}

void NarrowForward(const NormArgs<>& args) {
  ForRowLanes(args, [&](int64_t r, auto lanes) HWY_ATTR {
    const FloatTag d;
    const size_t C = args.C, N = hn::Lanes(d);
    const FloatVec width = Set(static_cast<float>(C));
    HWY_ALIGN float x[kShortRow * kMaxLanes];
    ReadColumns(args.x + r * C, lanes.count(), C, x);
    if (!args.rms) {
      const FloatVec mean = hn::Div(SumColumns(x, C), width);
      lanes.Store(mean, args.mean + r);
      Centre(x, C, mean);
    }
    FloatVec squares = hn::Zero(d);
    for (size_t c = 0; c < C; ++c) {
      const FloatVec v = hn::Load(d, x + c * N);
      squares = hn::MulAdd(v, v, squares);
    }
    const FloatVec variance = hn::Add(hn::Div(squares, width), Set(static_cast<float>(args.eps)));
    const FloatVec rstd = hn::Div(Set(1.0f), hn::Sqrt(variance));
    lanes.Store(rstd, args.rstd + r);
    ApplyColumns(args, r, lanes, rstd, x);
  });
}

void NarrowApply(const NormArgs<>& args) {
  ForRowLanes(args, [&](int64_t r, auto lanes) HWY_ATTR {
    const size_t C = args.C;
    HWY_ALIGN float x[kShortRow * kMaxLanes];
    ReadColumns(args.x + r * C, lanes.count(), C, x);
    if (!args.rms) Centre(x, C, lanes.Load(args.mean + r));
    ApplyColumns(args, r, lanes, lanes.Load(args.rstd + r), x);
  });
}

void NormForward(const NormArgs<>& args) {
  if (args.C <= static_cast<int64_t>(kShortRow)) return NarrowForward(args);
  ForRows(args, [&](int64_t first, int64_t count) {
    const int64_t C = args.C;
    const float* x = args.x + first * C;
    Moments rows[kRows];
    if (!args.rms) {
      for (int64_t k = 0; k < count; ++k) {
        args.mean[first + k] = rows[k].mean = static_cast<float>(Mean(x + k * C, C));
      }
    }
    for (int64_t k = 0; k < count; ++k) FindVariance(args, x + k * C, &rows[k]);
    for (int64_t k = 0; k < count; ++k) {
      args.rstd[first + k] = rows[k].rstd;
      ApplyRow(args, x + k * C, rows[k], args.y + (first + k) * C);
    }
  });
}

void NormApply(const NormArgs<>& args) {
  if (args.C <= static_cast<int64_t>(kShortRow)) return NarrowApply(args);
  ForRows(args, [&](int64_t first, int64_t count) {
    const int64_t C = args.C;
    const float* x = args.x + first * C;
    Moments rows[kRows];
    for (int64_t k = 0; k < count; ++k) {
      rows[k].rstd = args.rstd[first + k];
      if (args.rms) continue;
      rows[k].mean = args.mean[first + k];
      rows[k].rest = static_cast<float>(Rest(x + k * C, C, rows[k].mean));
    }
    for (int64_t k = 0; k < count; ++k) {
      ApplyRow(args, x + k * C, rows[k], args.y + (first + k) * C);
    }
  });
}

// What a row's dx needs beside its numbers: dx += rstd · (g - mean_g - xhat · mean_g_xhat).
struct RowGradient {
  const float* x;
  const float* dy;
  float* dx;
  Moments moments;
  float mean_g, mean_g_xhat;
};

RowGradient RowGradientOf(const NormArgs<>& args, int64_t r) {
  const int64_t at = r * args.C;
  RowGradient row{args.x + at, args.dy + at, args.dx + at, {}, 0, 0};
  row.moments.rstd = args.rstd[r];
  if (!args.rms) row.moments.mean = args.mean[r];
  const FloatVec mean = Set(row.moments.mean);
  double sums[3];  // of x - mean, g, g (x - mean)
  SumVectors<3>(args.C, sums, [&](size_t i, auto lanes, FloatVec* s) HWY_ATTR {
    const FloatVec d = hn::Sub(lanes.Load(row.x + i), mean);
    const FloatVec g = hn::Mul(lanes.Load(row.dy + i), lanes.Load(args.gain + i));
    s[0] = hn::Add(s[0], d);
    s[1] = hn::Add(s[1], g);
    s[2] = hn::MulAdd(g, d, s[2]);
  });
  const double C = static_cast<double>(args.C);
  const double rest = args.rms ? 0 : sums[0] / C;
  row.moments.rest = static_cast<float>(rest);
  row.mean_g = args.rms ? 0 : static_cast<float>(sums[1] / C);
  row.mean_g_xhat = static_cast<float>((sums[2] - rest * sums[1]) * row.moments.rstd / C);
  return row;
}

// dx of R rows, whose terms are added to dgain and dbias in one visit.
template <size_t R>
void AddGradients(const NormArgs<>& args, int64_t first, float* dgain, float* dbias) {
  RowGradient rows[R];
  for (size_t k = 0; k < R; ++k) rows[k] = RowGradientOf(args, first + k);
  ForVectors(args.C, [&](size_t i, auto lanes) HWY_ATTR {
    const FloatVec gain = lanes.Load(args.gain + i);
    FloatVec gain_sum = lanes.Load(dgain + i), bias_sum = lanes.Load(dbias + i);
    for (size_t k = 0; k < R; ++k) {
      const RowGradient& row = rows[k];
      const FloatVec centred =
          hn::Sub(hn::Sub(lanes.Load(row.x + i), Set(row.moments.mean)), Set(row.moments.rest));
      const FloatVec rstd = Set(row.moments.rstd);
      const FloatVec xhat = hn::Mul(centred, rstd);
      const FloatVec dy = lanes.Load(row.dy + i);
      gain_sum = hn::MulAdd(dy, xhat, gain_sum);
      bias_sum = hn::Add(bias_sum, dy);
      const FloatVec g = hn::MulSub(dy, gain, Set(row.mean_g));
      const FloatVec term = hn::NegMulAdd(xhat, Set(row.mean_g_xhat), g);
      lanes.Store(hn::MulAdd(rstd, term, lanes.Load(row.dx + i)), row.dx + i);
    }
    lanes.Store(gain_sum, dgain + i);
    lanes.Store(bias_sum, dbias + i);
  });
}

// dx of the rows from r on, whose terms are added to dgain and dbias [C, N].
template <class Lanes>
HWY_INLINE void AddGradientColumns(const NormArgs<>& args, int64_t r, Lanes lanes, float* dgain,
                                   float* dbias) {
  const FloatTag d;
  const size_t C = args.C, N = hn::Lanes(d), count = lanes.count();
  const FloatVec width = Set(static_cast<float>(C));
  HWY_ALIGN float x[kShortRow * kMaxLanes], dy[kShortRow * kMaxLanes], dx[kShortRow * kMaxLanes];
  ReadColumns(args.x + r * C, count, C, x);
  ReadColumns(args.dy + r * C, count, C, dy);
  ReadColumns(args.dx + r * C, count, C, dx);
  const FloatVec rstd = lanes.Load(args.rstd + r);
  if (!args.rms) Centre(x, C, lanes.Load(args.mean + r));
  FloatVec mean_g = hn::Zero(d), mean_g_xhat = hn::Zero(d);
  for (size_t c = 0; c < C; ++c) {
    const FloatVec xhat = hn::Mul(hn::Load(d, x + c * N), rstd);
    const FloatVec term = lanes.Keep(hn::Load(d, dy + c * N), hn::Zero(d));
    const FloatVec g = hn::Mul(term, Set(args.gain[c]));
    if (!args.rms) mean_g = hn::Add(mean_g, g);
    mean_g_xhat = hn::MulAdd(g, xhat, mean_g_xhat);
    hn::Store(hn::MulAdd(term, xhat, hn::Load(d, dgain + c * N)), d, dgain + c * N);
    hn::Store(hn::Add(term, hn::Load(d, dbias + c * N)), d, dbias + c * N);
    hn::Store(xhat, d, x + c * N);
    hn::Store(g, d, dy + c * N);
  }
  mean_g = hn::Div(mean_g, width);
  mean_g_xhat = hn::Div(mean_g_xhat, width);
  for (size_t c = 0; c < C; ++c) {
    const FloatVec g = hn::Sub(hn::Load(d, dy + c * N), mean_g);
    const FloatVec term = hn::NegMulAdd(hn::Load(d, x + c * N), mean_g_xhat, g);
    hn::Store(hn::MulAdd(rstd, term, hn::Load(d, dx + c * N)), d, dx + c * N);
  }
  WriteColumns(dx, count, C, args.dx + r * C);
}

// sums [2, C]: a run of rows' terms of dgain and dbias.
void NarrowGradients(const NormArgs<>& args, int64_t begin, int64_t rows, float* sums) {
  const FloatTag d;
  const size_t C = args.C, N = hn::Lanes(d);
  HWY_ALIGN float lane_sums[2 * kShortRow * kMaxLanes] = {};
  ForVectors(rows, [&](size_t i, auto lanes) HWY_ATTR {
    AddGradientColumns(args, begin + i, lanes, lane_sums, lane_sums + C * N);
  });
  for (size_t c = 0; c < 2 * C; ++c) {
    sums[c] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, lane_sums + c * N)));
  }
}

// out = (or +=) the sum of `count` arrays of C numbers, `stride` apart.
void SumPartials(const float* partials, int64_t count, size_t stride, size_t C, bool accumulate,
                 float* out) {
  ForVectors(C, [&](size_t i, auto lanes) HWY_ATTR {
    FloatVec sum = lanes.Load(partials + i);
    for (int64_t p = 1; p < count; ++p) sum = hn::Add(sum, lanes.Load(partials + p * stride + i));
    if (accumulate) sum = hn::Add(sum, lanes.Load(out + i));
    lanes.Store(sum, out + i);
  });
}

void NormBackward(const NormArgs<>& args) {
  const int64_t C = args.C;
  const Split split = SplitRows(args.rows, C, kMostPartials);
  const int64_t partials = std::max<int64_t>(1, split.pieces);  // no rows: sums of 0
  float* sums = reinterpret_cast<float*>(Scratch(partials * 2 * C * sizeof(float)));
  std::fill(sums, sums + 2 * C, 0.0f);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    float* dgain = sums + piece * 2 * C;
    if (C <= static_cast<int64_t>(kShortRow)) {
      return NarrowGradients(args, split.begin(piece), split.length(piece), dgain);
    }
    float* dbias = dgain + C;
    std::fill(dgain, dgain + 2 * C, 0.0f);
    int64_t r = split.begin(piece);
    for (; r + kRows <= split.end(piece); r += kRows) AddGradients<kRows>(args, r, dgain, dbias);
    for (; r < split.end(piece); ++r) AddGradients<1>(args, r, dgain, dbias);
  });
  SumPartials(sums, partials, 2 * C, C, args.accumulate, args.dgain);
  if (args.dbias != nullptr) {
    SumPartials(sums + C, partials, 2 * C, C, args.accumulate, args.dbias);
  }
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(NormForward);
HWY_EXPORT(NormApply);
HWY_EXPORT(NormBackward);

void NormForward(const NormArgs<>& args) { HWY_DYNAMIC_DISPATCH(NormForward)(args); }
void NormApply(const NormArgs<>& args) { HWY_DYNAMIC_DISPATCH(NormApply)(args); }
void NormBackward(const NormArgs<>& args) { HWY_DYNAMIC_DISPATCH(NormBackward)(args); }

}  // namespace heed::simd
#endif  // HWY_ONCE
