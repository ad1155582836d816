#include "inspect/attention_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/args.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/rope.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

// [B, N, M, D] -> [B, M, N, D].
Numbers SwapMiddle(const Numbers& from, int64_t B, int64_t N, int64_t M, int64_t D) {
  Numbers to(from.size());
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t m = 0; m < M; ++m) {
        std::copy_n(&from[((b * N + n) * M + m) * D], D, &to[((b * M + m) * N + n) * D]);
      }
    }
  }
  return to;
}

// [rows, N] -> [rows, count]: columns first .. first + count - 1.
Numbers TakeColumns(const Numbers& from, int64_t N, int64_t first, int64_t count) {
  const int64_t rows = static_cast<int64_t>(from.size()) / N;
  Numbers to(rows * count);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(&from[r * N + first], count, &to[r * count]);
  return to;
}

// a [rows, A] and b [rows, B] -> [rows, A + B].
Numbers JoinColumns(const Numbers& a, const Numbers& b, int64_t rows) {
  const int64_t A = static_cast<int64_t>(a.size()) / rows;
  const int64_t B = static_cast<int64_t>(b.size()) / rows;
  Numbers joined;
  joined.reserve(a.size() + b.size());
  for (int64_t r = 0; r < rows; ++r) {
    joined.insert(joined.end(), a.begin() + r * A, a.begin() + (r + 1) * A);
    joined.insert(joined.end(), b.begin() + r * B, b.begin() + (r + 1) * B);
  }
  return joined;
}

// y [rows, out] = x [rows, in] Wᵀ + b.
Numbers Project(const SavedLinear& linear, const Numbers& x) {
  const int64_t rows = static_cast<int64_t>(x.size()) / linear.in;
  Numbers y(rows * linear.out);
  reference::Matmul<double>({.M = rows,
                             .N = linear.out,
                             .K = linear.in,
                             .a = x.data(),
                             .a_row = linear.in,
                             .b = linear.weight.data(),
                             .b_row = 1,
                             .b_col = linear.in,
                             .c = y.data(),
                             .ldc = linear.out,
                             .bias = linear.bias.data()});
  return y;
}

// dx [rows, in] from dy [rows, out].
Numbers InputGradient(const SavedLinear& linear, const Numbers& dy) {
  const int64_t rows = static_cast<int64_t>(dy.size()) / linear.out;
  Numbers dx(rows * linear.in);
  reference::Matmul<double>({.M = rows,
                             .N = linear.in,
                             .K = linear.out,
                             .a = dy.data(),
                             .a_row = linear.out,
                             .b = linear.weight.data(),
                             .b_row = linear.in,
                             .c = dx.data(),
                             .ldc = linear.in});
  return dx;
}

// Adds the gradients of every part's weight and bias to `traced`, laid out as the file has them.
void AddWeightGradients(const SavedLinear& linear, const Numbers& x, const Numbers& dy,
                        int64_t rows, std::vector<TracedTensor>* traced) {
  Numbers dweight(linear.out * linear.in), dbias(linear.out);
  reference::Matmul<double>({.M = linear.out,
                             .N = linear.in,
                             .K = rows,
                             .a = dy.data(),
                             .a_row = 1,
                             .a_col = linear.out,
                             .b = x.data(),
                             .b_row = linear.in,
                             .c = dweight.data(),
                             .ldc = linear.in});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < linear.out; ++j) dbias[j] += dy[r * linear.out + j];
  }
  for (const WeightPart& part : linear.parts) {
    const int64_t out = static_cast<int64_t>(part.rows.size()), in = linear.in;
    Numbers weight(out * in), bias(out);
    for (int64_t j = 0; j < out; ++j) {
      bias[j] = dbias[part.rows[j]];
      for (int64_t c = 0; c < in; ++c) {
        weight[part.transposed ? c * out + j : j * in + c] = dweight[part.rows[j] * in + c];
      }
    }
    const std::vector<int64_t> shape =
        part.transposed ? std::vector{in, out} : std::vector{out, in};
    traced->push_back({"grad." + part.weight, shape, std::move(weight)});
    if (!part.bias.empty()) traced->push_back({"grad." + part.bias, {out}, std::move(bias)});
  }
}

class Tracer {
 public:
  Tracer(const AttentionCase& attention, int64_t weight_rows)
      : case_(attention),
        weight_rows_(weight_rows > 0 ? weight_rows : attention.B * attention.T),
        B_(attention.B),
        T_(attention.T),
        H_(attention.settings.n_head),
        Hkv_(attention.settings.n_kv_head),
        D_(attention.settings.head_dim) {}

  std::vector<TracedTensor> Run() {
    Forward();
    if (!case_.dy.empty()) Backward();
    return std::move(traced_);
  }

 private:
  void Add(const char* name, std::vector<int64_t> shape, Numbers values) {
    traced_.push_back({name, std::move(shape), std::move(values)});
  }

  void Forward() {
    Numbers q = case_.q, k = case_.k, v = case_.v;
    if (!case_.qkv.parts.empty()) {
      const Numbers qkv = Project(case_.qkv, case_.x);  // [B, T, (H + 2 Hkv) D]
      const auto heads = [&](int64_t first, int64_t count) {
        const Numbers columns = TakeColumns(qkv, (H_ + 2 * Hkv_) * D_, first * D_, count * D_);
        return SwapMiddle(columns, B_, T_, count, D_);
      };
      q = heads(0, H_);
      k = heads(H_, Hkv_);
      v = heads(H_ + Hkv_, Hkv_);
    }
    Numbers q_rot = q, k_rot = k;
    Rotate(H_, false, &q_rot);
    Rotate(Hkv_, false, &k_rot);
    queries_ = SwapMiddle(q_rot, B_, H_, T_, D_);
    keys_ = JoinColumns(case_.past_k, k_rot, B_ * Hkv_);
    values_ = JoinColumns(case_.past_v, v, B_ * Hkv_);
    merged_.resize(queries_.size());
    const int64_t S = case_.S();
    Numbers scores(B_ * H_ * T_ * S), pattern(B_ * H_ * T_ * S);
    reference::AttentionTrace(Args(), scores.data(), pattern.data());

    Add("q", {B_, H_, T_, D_}, std::move(q));
    Add("k", {B_, Hkv_, T_, D_}, std::move(k));
    Add("v", {B_, Hkv_, T_, D_}, std::move(v));
    Add("q_rot", {B_, H_, T_, D_}, std::move(q_rot));
    Add("k_rot", {B_, Hkv_, T_, D_}, std::move(k_rot));
    Add("scores", {B_, H_, T_, S}, std::move(scores));
    Add("pattern", {B_, H_, T_, S}, std::move(pattern));
    Add("z", {B_, H_, T_, D_}, SwapMiddle(merged_, B_, T_, H_, D_));
    Add("merged", {B_, T_, H_ * D_}, merged_);
    if (!case_.proj.parts.empty()) {
      Add("y", {B_, T_, case_.proj.out}, Project(case_.proj, merged_));
    }
  }

  void Backward() {
    const bool projected = !case_.proj.parts.empty();
    const Numbers dmerged = projected ? InputGradient(case_.proj, case_.dy) : case_.dy;
    Numbers dqueries(queries_.size()), dkeys(keys_.size()), dvalues(values_.size());
    AttentionArgs<double> args = Args();
    args.dz = dmerged.data();
    args.dq = dqueries.data();
    args.dk = dkeys.data();
    args.dv = dvalues.data();
    reference::AttentionBackward(args);

    const int64_t S = case_.S(), past = case_.P * D_;
    Numbers dq = SwapMiddle(dqueries, B_, T_, H_, D_);
    Numbers dk = TakeColumns(dkeys, S * D_, past, T_ * D_);
    Numbers dv = TakeColumns(dvalues, S * D_, past, T_ * D_);
    Rotate(H_, true, &dq);
    Rotate(Hkv_, true, &dk);
    if (case_.qkv.parts.empty()) {
      Add("grad.q", {B_, H_, T_, D_}, std::move(dq));
      Add("grad.k", {B_, Hkv_, T_, D_}, std::move(dk));
      Add("grad.v", {B_, Hkv_, T_, D_}, std::move(dv));
    } else {
      const Numbers dkv =
          JoinColumns(SwapMiddle(dk, B_, Hkv_, T_, D_), SwapMiddle(dv, B_, Hkv_, T_, D_), B_ * T_);
      const Numbers dqkv = JoinColumns(SwapMiddle(dq, B_, H_, T_, D_), dkv, B_ * T_);
      Add("grad.x", {B_, T_, case_.qkv.in}, InputGradient(case_.qkv, dqkv));
      AddWeightGradients(case_.qkv, case_.x, dqkv, weight_rows_, &traced_);
    }
    if (projected) AddWeightGradients(case_.proj, merged_, case_.dy, weight_rows_, &traced_);
    if (case_.P > 0) {
      Add("grad.past_k", {B_, Hkv_, case_.P, D_}, TakeColumns(dkeys, S * D_, 0, past));
      Add("grad.past_v", {B_, Hkv_, case_.P, D_}, TakeColumns(dvalues, S * D_, 0, past));
    }
  }

  // Turns x [B, heads, T, D] by its positions, the first of which is P; or back.
  void Rotate(int64_t heads, bool inverse, Numbers* x) const {
    const AttentionSettings& settings = case_.settings;
    if (settings.position != Position::kRope) return;
    const int64_t half = settings.rotary_dim / 2;
    Numbers cos(T_ * half), sin(T_ * half);
    for (int64_t t = 0; t < T_; ++t) {
      const auto position = static_cast<double>(settings.rope_first_position + case_.P + t);
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            position * std::pow(settings.rope_theta, -2.0 * static_cast<double>(i) /
                                                         static_cast<double>(settings.rotary_dim));
        cos[t * half + i] = std::cos(angle);
        sin[t * half + i] = std::sin(angle);
      }
    }
    // Every head of every sequence is a sequence of one head.
    reference::Rope<double>({.B = B_ * heads,
                             .T_ = T_,
                             .heads = 1,
                             .D = D_,
                             .half = half,
                             .interleaved = settings.rope_pairing == RopePairing::kInterleaved,
                             .inverse = inverse,
                             .x = x->data(),
                             .row = D_,
                             .cos = cos.data(),
                             .sin = sin.data()});
  }

  AttentionArgs<double> Args() {
    const int64_t S = case_.S();
    return {.B = B_,
            .T_ = T_,
            .S = S,
            .H = H_,
            .Hkv = Hkv_,
            .D = D_,
            .scale = 1 / std::sqrt(static_cast<double>(D_)),
            .window = case_.settings.window,
            .q = queries_.data(),
            .q_batch = T_ * H_ * D_,
            .q_row = H_ * D_,
            .k = keys_.data(),
            .v = values_.data(),
            .kv_batch = Hkv_ * S * D_,
            .kv_row = D_,
            .kv_head = S * D_,
            .z = merged_.data()};
  }

  const AttentionCase& case_;
  const int64_t weight_rows_;
  const int64_t B_, T_, H_, Hkv_, D_;
  Numbers queries_;        // [B, T, H, D], rotated
  Numbers keys_, values_;  // [B, Hkv, S, D]
  Numbers merged_;         // [B, T, H, D]
  std::vector<TracedTensor> traced_;
};

}  // namespace

std::vector<TracedTensor> TraceAttention(const AttentionCase& attention, int64_t weight_rows) {
  return Tracer(attention, weight_rows).Run();
}

}  // namespace heed
