// Causal self-attention with grouped heads, to be read. See AttentionArgs for shapes and strides;
// every function here holds one row of scores and weights at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/args.h"

namespace heed::reference {

// The keys first <= s < last that a query sees; none when first >= last.
struct KeyRange {
  int64_t first = 0, last = 0;
};

template <class T>
KeyRange VisibleKeys(const AttentionArgs<T>& a, int64_t b, int64_t t) {
  const int64_t length = a.lengths ? a.lengths[b] : a.S;
  const int64_t last = length - a.T_ + t + 1;
  const int64_t first = a.window > 0 ? last - a.window : 0;
  return {std::max<int64_t>(first, 0), std::max<int64_t>(last, 0)};
}

template <class T>
int64_t QueryIndex(const AttentionArgs<T>& a, int64_t b, int64_t t, int64_t h) {
  return b * a.q_batch + t * a.q_row + h * a.D;
}

// Query head h reads key/value head h / (H / Hkv).
template <class T>
int64_t KeyIndex(const AttentionArgs<T>& a, int64_t b, int64_t s, int64_t h) {
  return b * a.kv_batch + s * a.kv_row + h / (a.H / a.Hkv) * a.kv_head;
}

// What dropout multiplies weight (b, h, t, s) with: 0 or 1 / (1 - p).
template <class T>
T DropoutFactor(const AttentionArgs<T>& a, int64_t b, int64_t h, int64_t t, int64_t s) {
  if (a.dropout.p == 0) return T(1);
  const int64_t index = ((b * a.H + h) * a.T_ + t) * a.S + s;
  return RandomUniform(a.dropout.key, index) < a.dropout.p ? T(0) : T(1 / (1 - a.dropout.p));
}

// Scaled scores [S] and softmax weights [S] (before dropout) of one query: -inf and 0 where hidden.
// Returns the log of the softmax's denominator, -inf when the query sees nothing.
template <class T>
T AttentionRow(const AttentionArgs<T>& a, int64_t b, int64_t h, int64_t t, T* scores, T* pattern) {
  using std::exp;
  using std::log;
  const T hidden = T(-std::numeric_limits<double>::infinity());
  std::fill(scores, scores + a.S, hidden);
  std::fill(pattern, pattern + a.S, T(0));
  const KeyRange keys = VisibleKeys(a, b, t);
  if (keys.first >= keys.last) return hidden;

  const T* q = a.q + QueryIndex(a, b, t, h);
  T max = hidden;
  for (int64_t s = keys.first; s < keys.last; ++s) {
    const T* k = a.k + KeyIndex(a, b, s, h);
    T dot = T(0);
    for (int64_t d = 0; d < a.D; ++d) dot += q[d] * k[d];
    scores[s] = a.scale * dot;
    if (scores[s] > max) max = scores[s];
  }
  T sum = T(0);
  for (int64_t s = keys.first; s < keys.last; ++s) {
    pattern[s] = exp(scores[s] - max);
    sum += pattern[s];
  }
  for (int64_t s = keys.first; s < keys.last; ++s) pattern[s] /= sum;
  return max + log(sum);
}

// One query whole: its row of scores and weights, z[b,t,h] and lse[b,h,t].
template <class T>
void AttendOne(const AttentionArgs<T>& a, int64_t b, int64_t h, int64_t t, T* scores, T* pattern) {
  const T lse = AttentionRow(a, b, h, t, scores, pattern);
  if (a.lse) a.lse[(b * a.H + h) * a.T_ + t] = lse;
  T* z = a.z + ((b * a.T_ + t) * a.H + h) * a.D;
  std::fill(z, z + a.D, T(0));
  const KeyRange keys = VisibleKeys(a, b, t);
  for (int64_t s = keys.first; s < keys.last; ++s) {
    const T weight = pattern[s] * DropoutFactor(a, b, h, t, s);
    const T* v = a.v + KeyIndex(a, b, s, h);
    for (int64_t d = 0; d < a.D; ++d) z[d] += weight * v[d];
  }
}

// Writes z and lse. Queries that see no key have z = 0 and lse = -inf.
template <class T>
void AttentionForward(const AttentionArgs<T>& a) {
  std::vector<T> scores(a.S), pattern(a.S);
  for (int64_t b = 0; b < a.B; ++b) {
    for (int64_t h = 0; h < a.H; ++h) {
      for (int64_t t = 0; t < a.T_; ++t) AttendOne(a, b, h, t, scores.data(), pattern.data());
    }
  }
}

// Forward that keeps what it computes on the way: the scaled scores [B, H, T, S] with -inf where a
// key is hidden, and the pattern [B, H, T, S], the softmax before dropout, with exact zeros there.
template <class T>
void AttentionTrace(const AttentionArgs<T>& a, T* scores, T* pattern) {
  for (int64_t b = 0; b < a.B; ++b) {
    for (int64_t h = 0; h < a.H; ++h) {
      for (int64_t t = 0; t < a.T_; ++t) {
        const int64_t row = ((b * a.H + h) * a.T_ + t) * a.S;
        AttendOne(a, b, h, t, scores + row, pattern + row);
      }
    }
  }
}

// Sets dq, dk, dv from dz. With A the pattern, m the dropout factors and x the scaled scores:
//   dv[s] = sum over t of A m dz[t],  dA = m (dz[t]·v[s]),  dx = A (dA - sum over s of A dA).
template <class T>
void AttentionBackward(const AttentionArgs<T>& a) {
  std::vector<T> scores(a.S), pattern(a.S), dpattern(a.S);
  for (int64_t b = 0; b < a.B; ++b) {
    for (int64_t s = 0; s < a.S; ++s) {
      for (int64_t h = 0; h < a.H; h += a.H / a.Hkv) {
        const int64_t key = KeyIndex(a, b, s, h);
        std::fill(a.dk + key, a.dk + key + a.D, T(0));
        std::fill(a.dv + key, a.dv + key + a.D, T(0));
      }
    }
    for (int64_t h = 0; h < a.H; ++h) {
      for (int64_t t = 0; t < a.T_; ++t) {
        AttentionRow(a, b, h, t, scores.data(), pattern.data());
        const KeyRange keys = VisibleKeys(a, b, t);
        const T* dz = a.dz + ((b * a.T_ + t) * a.H + h) * a.D;
        T delta = T(0);
        for (int64_t s = keys.first; s < keys.last; ++s) {
          const int64_t key = KeyIndex(a, b, s, h);
          const T factor = DropoutFactor(a, b, h, t, s);
          T dot = T(0);
          for (int64_t d = 0; d < a.D; ++d) {
            dot += dz[d] * a.v[key + d];
            a.dv[key + d] += pattern[s] * factor * dz[d];
          }
          dpattern[s] = factor * dot;
          delta += pattern[s] * dpattern[s];
        }
        const int64_t query = QueryIndex(a, b, t, h);
        std::fill(a.dq + query, a.dq + query + a.D, T(0));
        for (int64_t s = keys.first; s < keys.last; ++s) {
          const int64_t key = KeyIndex(a, b, s, h);
          const T dscore = a.scale * pattern[s] * (dpattern[s] - delta);
          for (int64_t d = 0; d < a.D; ++d) {
            a.dq[query + d] += dscore * a.k[key + d];
            a.dk[key + d] += dscore * a.q[query + d];
          }
        }
      }
    }
  }
}

}  // namespace heed::reference
