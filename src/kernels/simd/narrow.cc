#include "kernels/simd/narrow.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/narrow.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/simd/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {
namespace {

// A piece of the batch: sequence by sequence in the lanes, through the model and back.
class NarrowPass {
 public:
  NarrowPass(const NarrowGpt& model, const NarrowArgs& args, int64_t piece)
      : m_(model),
        args_(args),
        at_(model, args.T),
        T_(args.T),
        workspace_(args.workspace + piece * at_.floats) {}

  // The sum of the losses of sequences begin .. end - 1; the gradients stay in the workspace.
  double Run(size_t begin, size_t end) {
    const size_t N = hn::Lanes(FloatTag());
    const bool backward = args_.gradients != nullptr;
    if (backward) {
      std::fill_n(Array(at_.gradients), m_.parameters * N, 0.0f);
      std::fill_n(Array(at_.dwte), m_.V * m_.C, 0.0f);
    }
    double loss = 0;
    for (size_t first = begin; first < end; first += N) {
      const size_t count = std::min(N, end - first);
      ReadTokens(first, count);
      Embed();
      for (size_t i = 0; i < m_.blocks.size(); ++i) BlockForward(m_.blocks[i], at_.blocks[i]);
      loss += Logits();
      if (!backward) continue;
      HeadBackward();
      for (size_t i = m_.blocks.size(); i-- > 0;) BlockBackward(m_.blocks[i], at_.blocks[i]);
      EmbedBackward(count);
    }
    return loss;
  }

  // Sets the model's gradients, or adds to them.
  void WriteGradients(bool accumulate) const {
    SumLanes(Array(at_.gradients), m_.parameters, accumulate, args_.gradients);
    const float* dwte = Array(at_.dwte);
    float* out = args_.gradients + m_.wte;
    for (int64_t i = 0; i < m_.V * m_.C; ++i) out[i] += dwte[i];
  }

 private:
  float* Array(int64_t at) const {
    return workspace_ + at * static_cast<int64_t>(hn::Lanes(FloatTag()));
  }
  int32_t* Integers(int64_t at) const { return reinterpret_cast<int32_t*>(Array(at)); }
  const float* Parameter(int64_t at) const {
    return at == kNoParameter ? nullptr : args_.parameters + at;
  }
  Matrix Weights(const NarrowLinear& w) const {
    return {Parameter(w.weight),
            static_cast<size_t>(w.in),
            static_cast<size_t>(w.out),
            static_cast<size_t>(w.in_step),
            static_cast<size_t>(w.out_step),
            Parameter(w.bias)};
  }
  Matrix Transposed(const NarrowLinear& w) const {
    const Matrix matrix = Weights(w);
    return {matrix.data, matrix.out, matrix.in, matrix.out_step, matrix.in_step, nullptr};
  }
  Scaling Scale(const NarrowNorm& norm) const {
    return {Parameter(norm.gain), Parameter(norm.bias), static_cast<size_t>(m_.C)};
  }
  Rows Channels(int64_t at) const { return {Array(at), static_cast<size_t>(m_.C)}; }
  Rows Inner(int64_t at) const { return {Array(at), static_cast<size_t>(m_.inner)}; }
  Rows Merged(int64_t at) const { return {Array(at), static_cast<size_t>(m_.q_width())}; }

  // Lanes without a sequence have token 0 and nothing to predict, so that every gradient there is
  // 0.
  void ReadTokens(size_t first, size_t count) {
    const size_t N = hn::Lanes(FloatTag());
    int32_t* tokens = Integers(at_.tokens);
    int32_t* targets = Integers(at_.targets);
    for (size_t l = 0; l < N; ++l) {
      const size_t row = (first + l) * T_;
      for (size_t t = 0; t < T_; ++t) {
        tokens[t * N + l] = l < count ? args_.tokens[row + t] : 0;
        targets[t * N + l] = l < count ? args_.targets[row + t] : -1;
      }
    }
  }

  void Embed() {
    const FloatTag d;
    const hn::RebindToSigned<FloatTag> di;
    const size_t N = hn::Lanes(d), C = m_.C;
    const float* wte = Parameter(m_.wte);
    const float* positions = m_.wpe == kNoParameter ? args_.positions : Parameter(m_.wpe);
    float* x = Array(at_.x);
    for (size_t t = 0; t < T_; ++t) {
      const auto rows =
          hn::Mul(hn::Load(di, Integers(at_.tokens) + t * N), hn::Set(di, static_cast<int32_t>(C)));
      for (size_t c = 0; c < C; ++c) {
        const FloatVec token = hn::GatherIndex(d, wte + c, rows);
        const float position = positions == nullptr ? 0 : positions[t * C + c];
        Put(hn::Add(token, Set(position)), x, t * C + c);
      }
    }
  }

  void EmbedBackward(size_t count) {
    const size_t N = hn::Lanes(FloatTag()), C = m_.C;
    const int32_t* tokens = Integers(at_.tokens);
    const float* dx = Array(at_.x);
    float* dwte = Array(at_.dwte);
    for (size_t t = 0; t < T_; ++t) {
      for (size_t l = 0; l < count; ++l) {
        float* row = dwte + tokens[t * N + l] * C;
        for (size_t c = 0; c < C; ++c) row[c] += dx[(t * C + c) * N + l];
      }
    }
    if (m_.wpe == kNoParameter) return;
    float* gradients = Array(at_.gradients);
    for (size_t i = 0; i < T_ * C; ++i) AddTo(At(dx, i), gradients, m_.wpe + i);
  }

  // normed = norm(x), with what backward needs.
  void Norm(const NarrowNorm& norm, int64_t xhat, int64_t rstd) {
    Standardize(Array(at_.x), T_, m_.C, m_.rms, static_cast<float>(m_.eps), Array(xhat),
                Array(rstd));
    ApplyNorm(Scale(norm), Array(xhat), T_, Array(at_.normed));
  }

  // x += y w + bias.
  void AddProduct(const NarrowLinear& w, const Rows& y) {
    float* x = Array(at_.x);
    const size_t C = m_.C;
    Product(Weights(w), y, T_,
            [&](FloatVec sum, size_t t, size_t c) HWY_ATTR { AddTo(sum, x, t * C + c); });
  }

  void Rotate(float* qkv, bool inverse) {
    const size_t heads = m_.H + m_.Hkv, half = m_.half;
    const size_t step = m_.interleaved ? 2 : 1, apart = m_.interleaved ? 1 : half;
    for (size_t t = 0; t < T_; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t row = t * m_.qkv_width() + h * m_.D;
        for (size_t i = 0; i < half; ++i) {
          const FloatVec cos = Set(args_.cos[t * half + i]);
          const FloatVec sin = Set(inverse ? -args_.sin[t * half + i] : args_.sin[t * half + i]);
          const size_t first = row + i * step, second = first + apart;
          const FloatVec x0 = At(qkv, first), x1 = At(qkv, second);
          Put(hn::MulSub(x0, cos, hn::Mul(x1, sin)), qkv, first);
          Put(hn::MulAdd(x0, sin, hn::Mul(x1, cos)), qkv, second);
        }
      }
    }
  }

  // Columns of q, k and v of query head h, and the rest of what it keeps.
  size_t QueryColumn(size_t h) const { return h * m_.D; }
  size_t KeyColumn(size_t h) const { return (m_.H + h / (m_.H / m_.Hkv)) * m_.D; }
  size_t ValueColumn(size_t h) const { return KeyColumn(h) + m_.Hkv * m_.D; }
  Head HeadOf(const NarrowWorkspace::Block& at, size_t h) const {
    Head head;
    head.D = m_.D;
    head.row = m_.qkv_width();
    head.scale = 1.0f / std::sqrt(static_cast<float>(m_.D));
    head.q = Array(at.qkv + QueryColumn(h));
    head.k = Array(at.qkv + KeyColumn(h));
    head.v = Array(at.qkv + ValueColumn(h));
    head.weights = Array(at.weights + h * TriangleRow(T_));
    head.inverse = Array(at.inverse + h * T_);
    head.z = Array(at.z + h * m_.D);
    head.z_row = m_.q_width();
    return head;
  }

  void BlockForward(const NarrowBlock& block, const NarrowWorkspace::Block& at) {
    Norm(block.norm_1, at.xhat_1, at.rstd_1);
    const size_t row = m_.qkv_width();
    size_t column = 0;
    for (const NarrowLinear& part : block.qkv) {
      float* qkv = Array(at.qkv + column);
      Product(Weights(part), Channels(at_.normed), T_,
              [&](FloatVec sum, size_t t, size_t c) HWY_ATTR { Put(sum, qkv, t * row + c); });
      column += part.out;
    }
    Rotate(Array(at.qkv), /*inverse=*/false);
    ForHeadWidth(m_.D, [&](auto width) HWY_ATTR {
      for (int64_t h = 0; h < m_.H; ++h) Attend<decltype(width)::value>(HeadOf(at, h), T_);
    });
    AddProduct(block.proj, Merged(at.z));
    Norm(block.norm_2, at.xhat_2, at.rstd_2);
    Activate(block, at);
    AddProduct(block.mlp_proj, Inner(at.h));
  }

  void Activate(const NarrowBlock& block, const NarrowWorkspace::Block& at) {
    const FloatTag d;
    const size_t inner = m_.inner;
    float* h = Array(at.h);
    float* slope = Array(at.slope);
    if (!m_.swiglu) {
      Product(Weights(block.fc), Channels(at_.normed), T_,
              [&](FloatVec x, size_t t, size_t i) HWY_ATTR {
                FloatVec y, dy;
                GeluWithDerivative(d, x, y, dy);
                Put(y, h, t * inner + i);
                Put(dy, slope, t * inner + i);
              });
      return;
    }
    float* silu = Array(at.silu);
    Product(Weights(block.fc), Channels(at_.normed), T_,
            [&](FloatVec up, size_t t, size_t i) HWY_ATTR { Put(up, h, t * inner + i); });
    Product(Weights(block.gate), Channels(at_.normed), T_,
            [&](FloatVec gate, size_t t, size_t i) HWY_ATTR {
              FloatVec s, rest;
              SigmoidPair(d, Exp(d, hn::Neg(gate)), s, rest);
              const FloatVec y = hn::Mul(gate, s), up = At(h, t * inner + i);
              const FloatVec dy = hn::Mul(s, hn::MulAdd(gate, rest, Set(1.0f)));
              Put(hn::Mul(y, up), h, t * inner + i);
              Put(hn::Mul(dy, up), slope, t * inner + i);
              Put(y, silu, t * inner + i);
            });
  }

  // Makes the logits, returns the sum of the losses, and turns the logits into their gradient.
  double Logits() {
    const FloatTag d;
    const hn::RebindToSigned<FloatTag> di;
    const size_t N = hn::Lanes(d), V = m_.V;
    Norm(m_.norm, at_.xhat, at_.rstd);
    float* logits = Array(at_.logits);
    Product(Weights(m_.head), Channels(at_.normed), T_,
            [&](FloatVec sum, size_t t, size_t v) HWY_ATTR { Put(sum, logits, t * V + v); });
    double loss = 0;
    HWY_ALIGN float losses[kMaxLanes];
    FloatVec total = hn::Zero(d);
    for (size_t t = 0; t < T_; ++t) {
      float* row = logits + t * V * N;
      const auto target = hn::Load(di, Integers(at_.targets) + t * N);
      const auto counts = hn::RebindMask(d, hn::Gt(target, hn::Set(di, -1)));
      FloatVec max = At(row, 0), at_target = hn::Zero(d), sum = hn::Zero(d);
      for (size_t v = 1; v < V; ++v) max = hn::Max(max, At(row, v));
      for (size_t v = 0; v < V; ++v) {
        const FloatVec logit = hn::Sub(At(row, v), max);
        const auto here = hn::RebindMask(d, hn::Eq(target, hn::Set(di, static_cast<int32_t>(v))));
        at_target = hn::IfThenElse(here, logit, at_target);
        const FloatVec e = Exp2(d, hn::Mul(logit, Set(kLog2E)));
        sum = hn::Add(sum, e);
        Put(e, row, v);
      }
      total = hn::Add(total, hn::IfThenElseZero(counts, hn::Sub(Log(d, sum), at_target)));
      const FloatVec scale = hn::IfThenElseZero(counts, Set(args_.scale));
      const FloatVec factor = hn::Div(scale, sum);
      for (size_t v = 0; v < V; ++v) {
        const auto here = hn::RebindMask(d, hn::Eq(target, hn::Set(di, static_cast<int32_t>(v))));
        Put(hn::MulSub(At(row, v), factor, hn::IfThenElseZero(here, scale)), row, v);
      }
    }
    hn::Store(total, d, losses);
    for (size_t l = 0; l < N; ++l) loss += losses[l];
    return loss;
  }

  void HeadBackward() {
    const Rows logits = {Array(at_.logits), static_cast<size_t>(m_.V)};
    WeightGradient(m_.head, Channels(at_.normed), logits, T_, Array(at_.gradients));
    InputGradient(m_.head, logits, false);
    NormGradient(m_.norm, m_.C, Array(at_.xhat), Array(at_.dnormed), T_, Array(at_.gradients));
    simd::HWY_NAMESPACE::NormBackward<false>(Scale(m_.norm), Array(at_.xhat), Array(at_.rstd),
                                             Array(at_.dnormed), T_, m_.rms, Array(at_.x));
  }

  // dnormed = (or +=) dy wᵀ.
  void InputGradient(const NarrowLinear& w, const Rows& dy, bool add) {
    float* dnormed = Array(at_.dnormed);
    const size_t C = m_.C;
    Product(Transposed(w), dy, T_, [&](FloatVec sum, size_t t, size_t c) HWY_ATTR {
      if (add) sum = hn::Add(sum, At(dnormed, t * C + c));
      Put(sum, dnormed, t * C + c);
    });
  }

  // From dnormed: x, which holds the gradient of the residual stream, and the norm's own.
  void AddNormBackward(const NarrowNorm& norm, int64_t xhat, int64_t rstd) {
    NormGradient(norm, m_.C, Array(xhat), Array(at_.dnormed), T_, Array(at_.gradients));
    simd::HWY_NAMESPACE::NormBackward<true>(Scale(norm), Array(xhat), Array(rstd),
                                            Array(at_.dnormed), T_, m_.rms, Array(at_.x));
  }

  void BlockBackward(const NarrowBlock& block, const NarrowWorkspace::Block& at) {
    MlpBackward(block, at);
    AttentionBackward(block, at);
  }

  void MlpBackward(const NarrowBlock& block, const NarrowWorkspace::Block& at) {
    float* gradients = Array(at_.gradients);
    const Rows dx = Channels(at_.x);
    WeightGradient(block.mlp_proj, Inner(at.h), dx, T_, gradients);
    const size_t inner = m_.inner;
    const bool swiglu = m_.swiglu;
    float* slope = Array(at.slope);
    float* silu = Array(at.silu);
    Product(Transposed(block.mlp_proj), dx, T_, [&](FloatVec dh, size_t t, size_t i) HWY_ATTR {
      const size_t j = t * inner + i;
      Put(hn::Mul(dh, At(slope, j)), slope, j);
      if (swiglu) Put(hn::Mul(dh, At(silu, j)), silu, j);
    });
    ApplyNorm(Scale(block.norm_2), Array(at.xhat_2), T_, Array(at_.normed));
    const Rows dfc = Inner(swiglu ? at.silu : at.slope);
    WeightGradient(block.fc, Channels(at_.normed), dfc, T_, gradients);
    InputGradient(block.fc, dfc, false);
    if (swiglu) {
      WeightGradient(block.gate, Channels(at_.normed), Inner(at.slope), T_, gradients);
      InputGradient(block.gate, Inner(at.slope), true);
    }
    AddNormBackward(block.norm_2, at.xhat_2, at.rstd_2);
  }

  void AttentionBackward(const NarrowBlock& block, const NarrowWorkspace::Block& at) {
    float* gradients = Array(at_.gradients);
    const Rows dx = Channels(at_.x);
    WeightGradient(block.proj, Merged(at.z), dx, T_, gradients);
    float* dz = Array(at_.dz);
    const size_t q_width = m_.q_width(), row = m_.qkv_width();
    Product(Transposed(block.proj), dx, T_,
            [&](FloatVec sum, size_t t, size_t i) HWY_ATTR { Put(sum, dz, t * q_width + i); });
    std::fill_n(Array(at_.dqkv), T_ * row * hn::Lanes(FloatTag()), 0.0f);
    ForHeadWidth(m_.D, [&](auto width) HWY_ATTR {
      for (int64_t h = 0; h < m_.H; ++h) {
        AttendBackward<decltype(width)::value>(
            HeadOf(at, h), T_, Array(at_.dz + h * m_.D), Array(at_.dqkv + QueryColumn(h)),
            Array(at_.dqkv + KeyColumn(h)), Array(at_.dqkv + ValueColumn(h)));
      }
    });
    Rotate(Array(at_.dqkv), /*inverse=*/true);
    ApplyNorm(Scale(block.norm_1), Array(at.xhat_1), T_, Array(at_.normed));
    size_t column = 0;
    for (const NarrowLinear& part : block.qkv) {
      const Rows dqkv = {Array(at_.dqkv + column), row};
      WeightGradient(part, Channels(at_.normed), dqkv, T_, gradients);
      InputGradient(part, dqkv, column > 0);
      column += part.out;
    }
    AddNormBackward(block.norm_1, at.xhat_1, at.rstd_1);
  }

  const NarrowGpt& m_;
  const NarrowArgs& args_;
  const NarrowWorkspace at_;
  const size_t T_;
  float* const workspace_;
};

double Narrow(const NarrowGpt& model, const NarrowArgs& args) {
  const NarrowSplit split(model, args.B, args.T);
  std::vector<double> losses(split.pieces);
  ParallelFor(split.pieces, [&](int64_t piece) HWY_ATTR {
    const int64_t begin = piece * split.size;
    losses[piece] = NarrowPass(model, args, piece).Run(begin, std::min(args.B, begin + split.size));
  });
  double loss = 0;
  for (int64_t piece = 0; piece < split.pieces; ++piece) {
    loss += losses[piece];
    if (args.gradients == nullptr) continue;
    NarrowPass(model, args, piece).WriteGradients(args.accumulate || piece > 0);
  }
  return loss;
}

}  // namespace
}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heed::simd {

HWY_EXPORT(Narrow);

double Narrow(const NarrowGpt& model, const NarrowArgs& args) {
  return HWY_DYNAMIC_DISPATCH(Narrow)(model, args);
}

}  // namespace heed::simd
#endif  // HWY_ONCE
