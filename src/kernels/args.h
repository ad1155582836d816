// The arguments of every operation, as plain structs of pointers, sizes and strides. They are
// templated on the number type: the reference kernels run on float, double and dual numbers, the
// fast ones on float.
//
// Letters: B batch, T query positions, S key positions, H query heads, Hkv key/value heads, D head
// width, C model width, V vocabulary. Arrays are row-major; a "stride" counts elements.
#pragma once

#include <cstdint>
#include <span>

#include "base/fields.h"
#include "base/random.h"
#include "tensor/packed.h"

namespace heed {

// How products are computed. Sums, and everything that is not a product of matrices, are float32.
enum class Arithmetic {
  kF32,
  kBf16,  // both operands are rounded to bfloat16, to nearest, ties to even
  // Of a product with packed blocks (q8_0, q4_0): rows of A are rounded to bytes that share a scale
  // by 32, to nearest, the largest number / 127. All other products are as in kF32.
  kInt8,
};

// Those that any model can be computed in.
inline std::span<const EnumName<Arithmetic>> EnumNames(Arithmetic) {
  static constexpr EnumName<Arithmetic> kNames[] = {{Arithmetic::kF32, "f32"},
                                                    {Arithmetic::kBf16, "bf16"}};
  return kNames;
}

// What a product does with its result while the tile is still at hand.
enum class Epilogue {
  kNone,          // C = AB
  kGelu,          // C = AB (kept for backward), aux = gelu(C)
  kGeluBackward,  // aux holds the pre-activation h: C = AB · gelu'(h), and aux becomes gelu(h)
  kGeluAndSlope,  // of h = AB: c_bf16 = gelu(h), aux_bf16 = gelu'(h)
  kTimes,         // c_bf16 = AB · aux_bf16
};

// C [M, N] = epilogue(A [M, K] · B [K, N] + bias) + residual, or C += A · B.
// a(i, k) = a[i·a_row + k·a_col], b(k, j) = b[k·b_row + j·b_col]; one of each pair of strides is 1.
// No operand may overlap c, but residual may be c itself.
template <class T = float>
struct MatmulArgs {
  int64_t M = 0, N = 0, K = 0;
  const T* a = nullptr;
  int64_t a_row = 0, a_col = 1;
  const T* b = nullptr;
  int64_t b_row = 0, b_col = 1;
  T* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;      // C += A · B; only with Epilogue::kNone, no bias, no residual
  const T* bias = nullptr;      // [N]
  const T* residual = nullptr;  // [M, N], row stride ldc; only with Epilogue::kNone
  Epilogue epilogue = Epilogue::kNone;
  T* aux = nullptr;  // [M, N], row stride ldc
  // In bfloat16 in place of a, b, c and aux: numbers that only such products read, rounded when
  // they are written in place of when they are read. With kBf16 alone; a factor's rows have an even
  // length and stride, and a product into c_bf16 neither accumulates nor has a residual.
  const uint16_t* a_bf16 = nullptr;
  const uint16_t* b_bf16 = nullptr;
  uint16_t* c_bf16 = nullptr;
  uint16_t* aux_bf16 = nullptr;
  Arithmetic arithmetic = Arithmetic::kF32;
  // When not empty, B in few bits, in place of b; then a_col is 1 and there is no accumulate.
  PackedB packed = {};
};

// Layer norm (Ba, Kiros, Hinton 2016) and, with `rms`, RMS norm (Zhang, Sennrich 2019), row by row:
//   y = (x - mean) / sqrt(var + eps) · gain + bias        y = x / sqrt(mean(x²) + eps) · gain
template <class T = float>
struct NormArgs {
  int64_t rows = 0, C = 0;
  double eps = 1e-5;
  bool rms = false;
  const T* x = nullptr;     // [rows, C]
  const T* gain = nullptr;  // [C]
  const T* bias = nullptr;  // [C] or null
  T* mean = nullptr;        // [rows]; written by forward, read by apply and backward; null for rms
  T* rstd = nullptr;        // [rows]; 1 / sqrt(var + eps)
  T* y = nullptr;           // [rows, C]; forward and apply
  // Backward only.
  const T* dy = nullptr;    // [rows, C]
  T* dx = nullptr;          // [rows, C]; added to, for it already holds the residual's gradient
  T* dgain = nullptr;       // [C]
  T* dbias = nullptr;       // [C] or null
  bool accumulate = false;  // dgain and dbias are added to rather than set
};

// Rotary positions (Su et al. 2021) in place on x [rows, heads, D] with row stride `row`: pair i of
// the first 2·half channels turns by angle[position][i]. Pairs are (i, i + half), or (2i, 2i + 1)
// when interleaved. Row r of batch b = r / T has position offset(b) + r % T.
template <class T = float>
struct RopeArgs {
  int64_t B = 0, T_ = 0, heads = 0, D = 0;
  int64_t half = 0;  // number of rotated pairs, rotary width / 2
  bool interleaved = false;
  bool inverse = false;  // turns back: the backward pass
  T* x = nullptr;
  int64_t row = 0;
  const T* cos = nullptr;  // [positions, half]
  const T* sin = nullptr;
  int64_t offset = 0;                // position of every sequence's first row
  const int32_t* offsets = nullptr;  // [B], in place of offset, or null
};

// Inverted dropout (Srivastava et al. 2014; scaled in training): element i is kept when its uniform
// number is at least p, and then multiplied by 1 / (1 - p).
struct DropoutArgs {
  double p = 0;
  RandomKey key;
};

// Causal self-attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023):
//   z[b,t,h] = sum over s of softmax(scale · q[b,t,h]·k[b,s,h/g]) v[b,s,h/g],  g = H / Hkv,
// over the keys s <= S - T + t (aligned at the last key), and s > S - T + t - window when a window
// is set. Scores are never stored: softmax runs online over tiles (Milakov, Gimelshein 2018; Dao
// et al. 2022). Heads of one position lie next to each other: element (b, t, h, d) of q is
// q[b·q_batch + t·q_row + h·D + d]; (b, s, h, d) of k and v is k[b·kv_batch + s·kv_row + h·kv_head
// + d]. Dropout element (b, h, t, s) has index ((b·H + h)·T + t)·S + s.
template <class T = float>
struct AttentionArgs {
  int64_t B = 0, T_ = 0, S = 0, H = 0, Hkv = 0, D = 0;
  T scale = 0;         // usually 1 / sqrt(D)
  int64_t window = 0;  // keys each query sees, itself included; 0 for all
  // Other than in kF32 a kernel may round the factors of products to bfloat16: q, k, v, dz, weights
  // and their gradients.
  Arithmetic arithmetic = Arithmetic::kF32;
  DropoutArgs dropout;
  const int32_t* lengths = nullptr;  // [B]: S of each sequence, in place of S, or null
  const T* q = nullptr;
  int64_t q_batch = 0, q_row = 0;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t kv_batch = 0, kv_row = 0, kv_head = 0;
  T* z = nullptr;    // [B, T, H, D], dense; written by forward, read by backward
  T* lse = nullptr;  // [B, H, T]: log of the softmax's denominator; forward writes it unless null
  // Backward only (needs T == S, no lengths); dq, dk, dv have the strides of q, k, v and are set.
  const T* dz = nullptr;  // [B, T, H, D], dense
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
};

// Mean cross-entropy, row by row: loss[r] = log sum exp(logits[r]) - logits[r, target], 0 where the
// target is -1. With `backward`, logits become scale · (softmax - onehot), 0 in ignored rows.
template <class T = float>
struct CrossEntropyArgs {
  int64_t rows = 0, V = 0;
  T* logits = nullptr;               // [rows, V], dense
  const int32_t* targets = nullptr;  // [rows], -1 is ignored
  double* loss = nullptr;            // [rows], in nats
  bool backward = false;
  T scale = 1;  // 1 / (number of targets that count)
};

// One AdamW update (Loshchilov, Hutter 2019) of n numbers, step counted from 1:
//   g' = grad_scale · g,  m = b1 m + (1-b1) g',  v = b2 v + (1-b2) g'^2,
//   p = p (1 - lr·weight_decay) - lr · (m / (1-b1^step)) / (sqrt(v / (1-b2^step)) + eps)
template <class T = float>
struct AdamwArgs {
  int64_t n = 0;
  T* param = nullptr;
  const T* grad = nullptr;
  T* m = nullptr;
  T* v = nullptr;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  // clipping
  int64_t step = 1;
};

// x[b·T + t] = wte[token] + wpe[offset + t] (wpe may be null).
template <class T = float>
struct EmbeddingArgs {
  int64_t B = 0, T_ = 0, C = 0, V = 0;
  const int32_t* tokens = nullptr;  // [B, T], each in [0, V)
  const T* wte = nullptr;           // [V, C]
  const T* wpe = nullptr;           // [positions, C]
  int64_t offset = 0;
  const int32_t* offsets = nullptr;  // [B], in place of offset, or null
  T* x = nullptr;                    // [B, T, C]
  // Backward only: dwte is added to; dwpe [T, C] is set, or added to with `accumulate`.
  const T* dx = nullptr;
  T* dwte = nullptr;
  T* dwpe = nullptr;
  bool accumulate = false;
};

// SwiGLU (Shazeer 2020): h = silu(gate) · up, elementwise. Backward turns gate and up into their
// gradients in place and recomputes h.
template <class T = float>
struct SwigluArgs {
  int64_t n = 0;
  T* gate = nullptr;
  T* up = nullptr;
  T* h = nullptr;
  const T* dh = nullptr;  // backward only
};

}  // namespace heed
