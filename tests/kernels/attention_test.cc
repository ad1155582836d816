#include "kernels/reference/attention.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "kernels/reference/rope.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/rope.h"
#include "support/compare.h"
#include "support/dual.h"
#include "support/targets.h"

namespace heed {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Layout {
  kFused,  // q, k and v in one array [B, T, (H + 2 Hkv) D]; needs S == T
  kCache,  // q dense [B, T, H, D]; k and v [B, Hkv, room, D] with room for more keys than S
};

struct Case {
  int64_t B = 1, T = 1, S = 1, H = 1, Hkv = 1, D = 1;
  int64_t window = 0;
  double dropout = 0;
  Layout layout = Layout::kFused;
  double size = 1;  // of the numbers in q
  Arithmetic arithmetic = Arithmetic::kF32;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << "B=" << c.B << " T=" << c.T << " S=" << c.S << " H=" << c.H << " Hkv=" << c.Hkv
               << " D=" << c.D << " window=" << c.window << " dropout=" << c.dropout
               << (c.layout == Layout::kFused ? " fused" : " cache");
  }
};

// Arrays and arguments of one call. The same case has the same float numbers in every type.
template <class T>
struct Problem {
  Case c;
  std::vector<T> q, k, v, z, lse, dz, dq, dk, dv;  // fused: all of q, k, v in q, and so dq
  AttentionArgs<T> a;

  explicit Problem(const Case& sizes) : c(sizes) {
    const bool fused = c.layout == Layout::kFused;
    const int64_t row = (c.H + 2 * c.Hkv) * c.D, room = c.S + 3;
    q = RandomArray<T>(c.B * c.T * (fused ? row : c.H * c.D), 1);
    for (int64_t r = 0; r < c.B * c.T; ++r) {
      T* heads = q.data() + r * (fused ? row : c.H * c.D);
      for (int64_t i = 0; i < c.H * c.D; ++i) heads[i] *= static_cast<T>(c.size);
    }
    k = RandomArray<T>(fused ? 0 : c.B * c.Hkv * room * c.D, 2);
    v = RandomArray<T>(fused ? 0 : c.B * c.Hkv * room * c.D, 3);
    z.assign(c.B * c.T * c.H * c.D, T(77));
    lse.assign(c.B * c.H * c.T, T(77));
    dz = RandomArray<T>(c.B * c.T * c.H * c.D, 4);
    dq.assign(q.size(), T(77));
    dk.assign(k.size(), T(77));
    dv.assign(v.size(), T(77));

    a.B = c.B, a.T_ = c.T, a.S = c.S, a.H = c.H, a.Hkv = c.Hkv, a.D = c.D;
    a.scale = static_cast<T>(static_cast<float>(1 / std::sqrt(static_cast<double>(c.D))));
    a.window = c.window;
    a.arithmetic = c.arithmetic;
    a.dropout = {c.dropout, {7, 3, kDropoutStream}};
    a.q_row = fused ? row : c.H * c.D;
    a.q_batch = c.T * a.q_row;
    a.kv_row = fused ? row : c.D;
    a.kv_head = fused ? c.D : room * c.D;
    a.kv_batch = fused ? a.q_batch : c.Hkv * a.kv_head;
    Point();
  }
  Problem(const Problem& other) : c(other.c) { *this = other; }
  Problem& operator=(const Problem& other) {
    q = other.q, k = other.k, v = other.v, z = other.z, lse = other.lse, dz = other.dz;
    dq = other.dq, dk = other.dk, dv = other.dv, a = other.a;
    Point();
    return *this;
  }

  T* Query(int64_t b, int64_t t, int64_t h) { return q.data() + reference::QueryIndex(a, b, t, h); }
  T* Key(int64_t b, int64_t s, int64_t head) {
    return const_cast<T*>(a.k) + b * a.kv_batch + s * a.kv_row + head * a.kv_head;
  }
  T* Value(int64_t b, int64_t s, int64_t head) {
    return const_cast<T*>(a.v) + b * a.kv_batch + s * a.kv_row + head * a.kv_head;
  }
  // z[b, t] of all heads, then lse[b, :, t].
  std::vector<T> Row(int64_t b, int64_t t) const {
    const auto first = z.begin() + (b * c.T + t) * c.H * c.D;
    std::vector<T> row(first, first + c.H * c.D);
    for (int64_t h = 0; h < c.H; ++h) row.push_back(lse[(b * c.H + h) * c.T + t]);
    return row;
  }

 private:
  void Point() {
    const bool fused = c.layout == Layout::kFused;
    a.q = q.data(), a.dq = dq.data();
    a.k = fused ? q.data() + c.H * c.D : k.data();
    a.v = fused ? q.data() + (c.H + c.Hkv) * c.D : v.data();
    a.dk = fused ? dq.data() + c.H * c.D : dk.data();
    a.dv = fused ? dq.data() + (c.H + c.Hkv) * c.D : dv.data();
    a.z = z.data(), a.lse = lse.data(), a.dz = dz.data();
  }
};

template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// ---- The reference, against derivatives and numbers from elsewhere

// d(sum of dz·z) / d(every input), one dual number at a time.
std::vector<double> DualGradient(const Case& c) {
  Problem<double> plain(c);
  Problem<Dual> dual(c);
  std::vector<double> gradient;
  for (std::vector<Dual>* input : {&dual.q, &dual.k, &dual.v}) {
    for (Dual& x : *input) {
      x.slope = 1;
      reference::AttentionForward(dual.a);
      x.slope = 0;
      double sum = 0;
      for (size_t i = 0; i < dual.z.size(); ++i) sum += plain.dz[i] * dual.z[i].slope;
      gradient.push_back(sum);
    }
  }
  return gradient;
}

TEST(AttentionReference, GradientsAreTheDerivatives) {
  const Case cases[] = {
      {2, 5, 5, 3, 3, 4},                          // every head its own keys
      {2, 5, 5, 6, 2, 3},                          // grouped
      {1, 7, 7, 4, 1, 2},                          // one key/value head
      {2, 7, 7, 4, 2, 3, 3},                       // window
      {2, 6, 6, 4, 2, 3, 0, 0.4},                  // dropout
      {1, 7, 7, 6, 3, 5, 4, 0.3, Layout::kCache},  // all of it, other strides
      {1, 1, 1, 2, 1, 3},                          // one position
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    Problem<double> p(c);
    reference::AttentionBackward(p.a);
    std::vector<double> got = p.dq;
    const auto add_seen = [&](const std::vector<double>& x) {
      got.insert(got.end(), x.begin(), x.end());
    };
    add_seen(p.dk);
    add_seen(p.dv);
    std::vector<double> want = DualGradient(c);
    // Room in the cache behind the keys in use is nobody's.
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == 77) {
        EXPECT_EQ(want[i], 0);
        want[i] = 77;
      }
    }
    double largest = 0, worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i] != 77) largest = std::max(largest, std::abs(want[i]));
      worst = std::max(worst, std::abs(got[i] - want[i]));
    }
    EXPECT_LT(worst, 1e-11 * largest);
  }
}

TEST(LessonRow09, TwoPositionsByHand) {
  for (const bool window : {false, true}) {
    const std::vector<double> q = {1, 2}, k = {1, 3}, v = {10, 20};
    std::vector<double> z(2), lse(2), scores(4), pattern(4);
    AttentionArgs<double> a;
    a.B = a.H = a.Hkv = a.D = 1, a.T_ = a.S = 2, a.scale = 1;
    a.window = window ? 2 : 0;
    a.q = q.data(), a.k = k.data(), a.v = v.data();
    a.q_row = a.kv_row = 1;
    a.z = z.data(), a.lse = lse.data();
    reference::AttentionTrace(a, scores.data(), pattern.data());
    EXPECT_EQ(scores[0], 1);
    EXPECT_EQ(scores[1], -HUGE_VAL);
    EXPECT_EQ(scores[2], 2);
    EXPECT_EQ(scores[3], 6);
    EXPECT_EQ(pattern[0], 1);
    EXPECT_EQ(pattern[1], 0);
    EXPECT_NEAR(pattern[2], 0.017986, 5e-7);
    EXPECT_NEAR(pattern[3], 0.982014, 5e-7);
    EXPECT_NEAR(z[0], 10, 1e-14);
    EXPECT_NEAR(z[1], 19.820138, 5e-7);
    EXPECT_NEAR(lse[1], std::log(std::exp(2) + std::exp(6)), 1e-14);
  }
}

TEST(LessonRow10, ThreePositionsByHand) {
  const std::vector<float> q = {1, 0, 0, 1, 1, 1}, k = {1, 0, 1, 1, 0, 1}, v = {2, 0, 0, 3, 1, 1};
  const float z_want[] = {2, 0, .660f, 2.009f, .745f, 1.759f};
  const float pattern_want[] = {1, 0, 0, .330f, .670f, 0, .248f, .503f, .248f};
  std::vector<float> z(6), scores(9), pattern(9);
  AttentionArgs<> a;
  a.B = a.H = a.Hkv = 1, a.T_ = a.S = 3, a.D = 2;
  a.scale = std::sqrt(0.5f);
  a.q = q.data(), a.k = k.data(), a.v = v.data();
  a.q_row = a.kv_row = 2;
  a.z = z.data();
  reference::AttentionTrace(a, scores.data(), pattern.data());
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(z[i], z_want[i], 6e-4);
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(pattern[i], pattern_want[i], 6e-4);
  ForEachTarget([&] {
    std::fill(z.begin(), z.end(), 0.0f);
    simd::AttentionForward(a);
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(z[i], z_want[i], 6e-4);
  });
}

TEST(AttentionReference, TraceShowsWhatForwardUses) {
  const Case c{2, 4, 9, 6, 3, 5, 5, 0, Layout::kCache};
  Problem<double> p(c);
  std::vector<double> scores(c.B * c.H * c.T * c.S), pattern(scores.size());
  reference::AttentionTrace(p.a, scores.data(), pattern.data());
  for (int64_t row = 0; row < c.B * c.H * c.T; ++row) {
    const int64_t t = row % c.T, last = c.S - c.T + t;
    double sum = 0;
    for (int64_t s = 0; s < c.S; ++s) {
      const bool visible = s <= last && s > last - c.window;
      EXPECT_EQ(pattern[row * c.S + s] > 0, visible);
      EXPECT_EQ(std::isfinite(scores[row * c.S + s]), visible);
      if (visible) {
        EXPECT_NEAR(pattern[row * c.S + s], std::exp(scores[row * c.S + s] - p.lse[row]), 1e-14);
      }
      sum += pattern[row * c.S + s];
    }
    EXPECT_NEAR(sum, 1, 1e-14);
  }
  Problem<double> q(c);
  reference::AttentionForward(q.a);
  EXPECT_TRUE(SameBits(p.z, q.z));
}

// ---- The fast kernels against the reference

Case RandomCase(bool square) {
  Case c;
  c.B = *rc::gen::inRange<int64_t>(1, 3);
  c.Hkv = *rc::gen::inRange<int64_t>(1, 4);
  c.H = c.Hkv * *rc::gen::inRange<int64_t>(1, 4);
  c.D = *rc::gen::weightedOneOf<int64_t>({{4, rc::gen::inRange<int64_t>(1, 72)},
                                          {1, rc::gen::element<int64_t>(1, 2, 3, 4, 8, 16)},
                                          {1, rc::gen::element<int64_t>(64, 128, 200, 256)}});
  const int64_t most = c.D > 80 ? 80 : 200;
  c.T = *rc::gen::inRange<int64_t>(1, most);
  c.S = square ? c.T : c.T + *rc::gen::inRange<int64_t>(0, most);
  if (*rc::gen::arbitrary<bool>()) c.window = *rc::gen::inRange<int64_t>(1, c.S + 2);
  if (*rc::gen::arbitrary<bool>()) c.dropout = *rc::gen::element(0.1, 0.5, 0.9);
  if (!square || *rc::gen::arbitrary<bool>()) c.layout = Layout::kCache;
  return c;
}

TEST(Attention, ForwardAgreesWithTheReferenceAtRaggedSizes) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      const Case c = RandomCase(false);
      RC_LOG() << testing::PrintToString(c);
      Problem<float> fast(c);
      Problem<double> slow(c);
      simd::AttentionForward(fast.a);
      reference::AttentionForward(slow.a);
      RC_ASSERT(RelativeError(fast.z, slow.z) < 2e-6);
      // Scores here are of size 1; a single one near 0 rounds like its neighbours.
      std::vector<double> lse(slow.lse.begin(), slow.lse.end());
      lse.push_back(1);
      fast.lse.push_back(1);
      RC_ASSERT(RelativeError(fast.lse, lse) < 1e-6);
    }));
  });
}

// Untouched room in the cache must not count as the largest number.
template <class T>
void ClearRoom(Problem<T>* p) {
  for (auto* x : {&p->dk, &p->dv}) std::replace(x->begin(), x->end(), T(77), T(0));
}

// Keys and values behind position t become `planted`.
void PlantBehind(int64_t t, float planted, Problem<float>* p) {
  const Case& c = p->c;
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t s = t + 1; s < c.T; ++s) {
      for (int64_t h = 0; h < c.Hkv; ++h) {
        std::fill_n(p->Key(b, s, h), c.D, planted);
        std::fill_n(p->Value(b, s, h), c.D, planted);
      }
    }
  }
}

TEST(Attention, BackwardAgreesWithTheReferenceAtRaggedSizes) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      const Case c = RandomCase(true);
      RC_LOG() << testing::PrintToString(c);
      Problem<float> fast(c);
      Problem<double> slow(c);
      simd::AttentionForward(fast.a);
      simd::AttentionBackward(fast.a);
      reference::AttentionBackward(slow.a);
      ClearRoom(&fast);
      ClearRoom(&slow);
      RC_ASSERT(RelativeError(fast.dq, slow.dq) < 1e-5);
      RC_ASSERT(RelativeError(fast.dk, slow.dk) < 1e-5);
      RC_ASSERT(RelativeError(fast.dv, slow.dv) < 1e-5);
    }));
  });
}

Case RandomBf16Case() {
  Case c = RandomCase(true);
  c.arithmetic = Arithmetic::kBf16;
  c.D = *rc::gen::element<int64_t>(32, 64, 96);
  c.B = std::min<int64_t>(c.B, 3);
  c.dropout = std::min(c.dropout, 0.5);
  return c;
}

// Rounding a factor to bfloat16 changes it by 2^-9 at most, and each result is behind two or three
// such products.
TEST(AttentionBf16, AgreesWithTheReferenceToItsRounding) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      const Case c = RandomBf16Case();
      RC_LOG() << testing::PrintToString(c);
      Problem<float> fast(c);
      Problem<double> slow(c);
      simd::AttentionForward(fast.a);
      simd::AttentionBackward(fast.a);
      reference::AttentionForward(slow.a);
      reference::AttentionBackward(slow.a);
      ClearRoom(&fast);
      ClearRoom(&slow);
      RC_ASSERT(RelativeError(fast.z, slow.z) < 0.01);
      RC_ASSERT(RelativeError(fast.dv, slow.dv) < 0.02);
      // Where each query sees one key its gradient and the key's are 0 but for rounding, which
      // cannot be measured against them; with few keys they are small differences.
      if (std::min(c.T, c.window == 0 ? c.T : c.window) < 6) return;
      RC_ASSERT(RelativeError(fast.dq, slow.dq) < 0.02);
      RC_ASSERT(RelativeError(fast.dk, slow.dk) < 0.02);
    }));
  });
}

TEST(AttentionBf16, LaterPositionsChangeNoBit) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      const Case c = RandomBf16Case();
      RC_LOG() << testing::PrintToString(c);
      Problem<float> before(c);
      simd::AttentionForward(before.a);
      const int64_t t = *rc::gen::inRange<int64_t>(0, c.T);
      Problem<float> after = before;
      PlantBehind(t, 1e30f, &after);
      simd::AttentionForward(after.a);
      for (int64_t b = 0; b < c.B; ++b) {
        for (int64_t i = 0; i <= t; ++i) RC_ASSERT(SameBits(before.Row(b, i), after.Row(b, i)));
      }
    }));
  });
}

TEST(Attention, SequencesOfOneBatchMayHaveTheirOwnLengths) {
  ForEachTarget([] {
    Case c{3, 4, 150, 4, 2, 20, 0, 0, Layout::kCache};
    const int32_t lengths[] = {150, 4, 77};
    for (const int64_t window : {0, 30}) {
      c.window = window;
      Problem<float> fast(c);
      Problem<double> slow(c);
      fast.a.lengths = slow.a.lengths = lengths;
      simd::AttentionForward(fast.a);
      reference::AttentionForward(slow.a);
      EXPECT_LT(RelativeError(fast.z, slow.z), 2e-6);
      EXPECT_LT(RelativeError(fast.lse, slow.lse), 1e-6);
    }
  });
}

TEST(Attention, AQueryWithoutKeysGivesZero) {
  ForEachTarget([] {
    for (const int64_t D : {2, 20}) {
      const Case c{1, 5, 5, 2, 1, D, 0, 0, Layout::kCache};
      Problem<float> fast(c);
      Problem<double> slow(c);
      const int32_t length = 2;  // queries 0..2 stand before the first key
      fast.a.lengths = slow.a.lengths = &length;
      simd::AttentionForward(fast.a);
      reference::AttentionForward(slow.a);
      for (int64_t t = 0; t < 3; ++t) {
        const std::vector<float> row = fast.Row(0, t);
        for (int64_t i = 0; i < c.H * D; ++i) EXPECT_EQ(row[i], 0);
        for (int64_t h = 0; h < c.H; ++h) EXPECT_EQ(row[c.H * D + h], -HUGE_VALF);
      }
      EXPECT_LT(RelativeError(fast.z, slow.z), 2e-6);
    }
  });
}

TEST(Attention, LargeScoresStayFinite) {
  ForEachTarget([] {
    for (const int64_t D : {3, 40}) {
      Case c{1, 150, 150, 2, 1, D};
      c.size = 1000;
      Problem<float> fast(c);
      Problem<double> slow(c);
      simd::AttentionForward(fast.a);
      simd::AttentionBackward(fast.a);
      reference::AttentionForward(slow.a);
      for (const auto* x : {&fast.z, &fast.lse, &fast.dq}) {
        for (const float value : *x) ASSERT_TRUE(std::isfinite(value));
      }
      // Scores of some thousands are rounded to some 1e-4, and so are their exponentials.
      EXPECT_LT(RelativeError(fast.z, slow.z), 1e-3);
    }
  });
}

TEST(Attention, NothingIsTouchedBetweenTheRows) {
  ForEachTarget([] {
    const Case c{2, 9, 9, 4, 2, 5, 0, 0, Layout::kCache};
    Problem<float> p(c);
    simd::AttentionForward(p.a);
    simd::AttentionBackward(p.a);
    for (int64_t head = 0; head < c.B * c.Hkv; ++head) {
      for (int64_t i = c.S * c.D; i < (c.S + 3) * c.D; ++i) {
        EXPECT_EQ(p.dk[head * (c.S + 3) * c.D + i], 77);
        EXPECT_EQ(p.dv[head * (c.S + 3) * c.D + i], 77);
      }
    }
    p.a.lse = nullptr;
    simd::AttentionForward(p.a);  // lse is optional
  });
}

// ---- Bits

TEST(LessonRow22, LaterPositionsChangeNoBit) {
  ForEachTarget([] {
    EXPECT_TRUE(rc::check([] {
      Case c = RandomCase(true);
      RC_LOG() << testing::PrintToString(c);
      Problem<float> before(c);
      simd::AttentionForward(before.a);
      const int64_t t = *rc::gen::inRange<int64_t>(0, c.T);
      const float planted = *rc::gen::element(kNan, HUGE_VALF, 3e38f, 1.0f);
      Problem<float> after = before;
      PlantBehind(t, planted, &after);
      for (int64_t b = 0; b < c.B; ++b) {
        for (int64_t s = t + 1; s < c.T; ++s) {
          for (int64_t h = 0; h < c.H; ++h) std::fill_n(after.Query(b, s, h), c.D, planted);
        }
      }
      simd::AttentionForward(after.a);
      for (int64_t b = 0; b < c.B; ++b) {
        for (int64_t i = 0; i <= t; ++i) RC_ASSERT(SameBits(before.Row(b, i), after.Row(b, i)));
      }
    }));
  });
}

TEST(LessonRow30, KeysBeforeTheWindowChangeNoBit) {
  ForEachTarget([] {
    for (const int64_t D : {2, 33}) {
      const Case c{1, 200, 200, 2, 1, D, 70};
      Problem<float> before(c);
      simd::AttentionForward(before.a);
      Problem<float> after = before;
      for (int64_t s = 0; s < 50; ++s) {
        std::fill_n(after.Key(0, s, 0), D, kNan);
        std::fill_n(after.Value(0, s, 0), D, kNan);
      }
      simd::AttentionForward(after.a);
      for (int64_t t = 0; t < c.T; ++t) {
        EXPECT_EQ(SameBits(before.Row(0, t), after.Row(0, t)), t >= 50 + 69) << t;
      }
    }
  });
}

TEST(Attention, AWindowOverEverythingIsNoWindow) {
  ForEachTarget([] {
    for (const int64_t D : {4, 24}) {
      Case c{2, 130, 130, 2, 1, D};
      Problem<float> all(c);
      c.window = 130;
      Problem<float> window(c);
      for (auto* p : {&all, &window}) {
        simd::AttentionForward(p->a);
        simd::AttentionBackward(p->a);
      }
      EXPECT_TRUE(SameBits(all.z, window.z));
      EXPECT_TRUE(SameBits(all.dq, window.dq));
    }
  });
}

// Of queries from any position on, in chunks, behind a cache.
void CheckChunks(const std::function<Case()>& random_case) {
  ForEachTarget([&] {
    EXPECT_TRUE(rc::check([&] {
      Case c = random_case();
      c.layout = Layout::kCache;
      c.dropout = 0;  // its index counts from the first query of a call
      RC_LOG() << testing::PrintToString(c);
      Problem<float> whole(c);
      simd::AttentionForward(whole.a);
      const bool single = *rc::gen::arbitrary<bool>();
      for (int64_t first = 0; first < c.T;) {
        const int64_t length =
            single ? 1 : *rc::gen::inRange<int64_t>(1, std::min<int64_t>(c.T - first, 100) + 1);
        std::vector<float> z(c.B * length * c.H * c.D), lse(c.B * c.H * length);
        AttentionArgs<> chunk = whole.a;
        chunk.T_ = length;
        chunk.S = first + length;
        chunk.q += first * chunk.q_row;
        chunk.z = z.data();
        chunk.lse = lse.data();
        simd::AttentionForward(chunk);
        for (int64_t b = 0; b < c.B; ++b) {
          for (int64_t t = 0; t < length; ++t) {
            const auto at = z.begin() + (b * length + t) * c.H * c.D;
            std::vector<float> row(at, at + c.H * c.D);
            for (int64_t h = 0; h < c.H; ++h) row.push_back(lse[(b * c.H + h) * length + t]);
            RC_ASSERT(SameBits(row, whole.Row(b, first + t)));
          }
        }
        first += length;
      }
    }));
  });
}

TEST(Attention, ChunksAndACacheGiveTheBitsOfOnePass) {
  CheckChunks([] { return RandomCase(true); });
}

TEST(AttentionBf16, ChunksAndACacheGiveTheBitsOfOnePass) { CheckChunks(RandomBf16Case); }

TEST(Attention, OtherSequencesChangeNoBit) {
  ForEachTarget([] {
    for (const int64_t D : {2, 20}) {
      const Case c{3, 70, 70, 4, 2, D, 0, 0, Layout::kCache};
      Problem<float> all(c);
      simd::AttentionForward(all.a);
      const int32_t lengths[] = {50, 70, 65};
      Problem<float> ragged(c);
      ragged.a.lengths = lengths;
      ragged.a.T_ = 1;
      std::vector<float> z(c.B * c.H * D), lse(c.B * c.H);
      ragged.a.z = z.data();
      ragged.a.lse = lse.data();
      for (int64_t b = 0; b < c.B; ++b) {
        // The query of each sequence's last position.
        std::copy_n(ragged.Query(b, lengths[b] - 1, 0), c.H * D, ragged.Query(b, 0, 0));
      }
      simd::AttentionForward(ragged.a);
      for (int64_t b = 0; b < c.B; ++b) {
        std::vector<float> row(z.begin() + b * c.H * D, z.begin() + (b + 1) * c.H * D);
        row.insert(row.end(), lse.begin() + b * c.H, lse.begin() + (b + 1) * c.H);
        EXPECT_TRUE(SameBits(row, all.Row(b, lengths[b] - 1))) << b;
      }
    }
  });
}

// Many small heads of short sequences are computed side by side, a single one by its queries.
constexpr Case kManySmallHeads[] = {{19, 17, 17, 6, 2, 2},
                                    {33, 16, 16, 3, 3, 1},
                                    {16, 64, 64, 2, 1, 3, 9},
                                    {37, 5, 5, 1, 1, 4},
                                    {18, 33, 33, 4, 2, 4, 4, 0, Layout::kCache}};

TEST(Attention, ManySmallHeadsAgreeWithTheReference) {
  ForEachTarget([] {
    for (Case c : kManySmallHeads) {
      for (const double dropout : {0.0, 0.4}) {
        c.dropout = dropout;
        SCOPED_TRACE(testing::PrintToString(c));
        Problem<float> fast(c);
        Problem<double> slow(c);
        simd::AttentionForward(fast.a);
        simd::AttentionBackward(fast.a);
        reference::AttentionForward(slow.a);
        reference::AttentionBackward(slow.a);
        EXPECT_LT(RelativeError(fast.z, slow.z), 2e-6);
        EXPECT_LT(RelativeError(fast.lse, slow.lse), 1e-6);
        EXPECT_LT(RelativeError(fast.dq, slow.dq), 1e-5);
        EXPECT_LT(RelativeError(fast.dk, slow.dk), 1e-5);
        EXPECT_LT(RelativeError(fast.dv, slow.dv), 1e-5);
      }
    }
  });
}

TEST(Attention, ManySmallHeadsHaveTheBitsOfEachSequenceAlone) {
  ForEachTarget([] {
    for (const Case& c : kManySmallHeads) {
      SCOPED_TRACE(testing::PrintToString(c));
      Problem<float> all(c), apart(c);
      simd::AttentionForward(all.a);
      simd::AttentionBackward(all.a);
      AttentionArgs<> one = apart.a;
      one.B = 1;
      for (int64_t b = 0; b < c.B; ++b) {
        simd::AttentionForward(one);
        simd::AttentionBackward(one);
        one.q += one.q_batch, one.dq += one.q_batch;
        one.k += one.kv_batch, one.dk += one.kv_batch;
        one.v += one.kv_batch, one.dv += one.kv_batch;
        one.z += c.T * c.H * c.D, one.dz += c.T * c.H * c.D;
        one.lse += c.H * c.T;
      }
      EXPECT_TRUE(SameBits(all.z, apart.z));
      EXPECT_TRUE(SameBits(all.lse, apart.lse));
      EXPECT_TRUE(SameBits(all.dq, apart.dq));
      EXPECT_TRUE(SameBits(all.dk, apart.dk));
      EXPECT_TRUE(SameBits(all.dv, apart.dv));
    }
  });
}

TEST(LessonRow17, GroupedHeadsAreTheBitsOfRepeatedHeads) {
  ForEachTarget([] {
    for (const int64_t D : {3, 40}) {
      const Case c{2, 100, 100, 6, 2, D, 0, 0.2, Layout::kCache};
      Problem<float> grouped(c);
      Case repeated_case = c;
      repeated_case.Hkv = c.H;
      Problem<float> repeated(repeated_case);
      repeated.q = grouped.q;
      for (int64_t b = 0; b < c.B; ++b) {
        for (int64_t h = 0; h < c.H; ++h) {
          for (int64_t s = 0; s < c.S; ++s) {
            std::copy_n(grouped.Key(b, s, h / 3), D, repeated.Key(b, s, h));
            std::copy_n(grouped.Value(b, s, h / 3), D, repeated.Value(b, s, h));
          }
        }
      }
      simd::AttentionForward(grouped.a);
      simd::AttentionForward(repeated.a);
      EXPECT_TRUE(SameBits(grouped.z, repeated.z));
    }
  });
}

TEST(Attention, ThreadsChangeNoBit) {
  const Case cases[] = {{1, 200, 200, 4, 1, 24, 0, 0.1},
                        {3, 100, 100, 6, 3, 16},
                        {1, 300, 300, 1, 1, 5, 90},
                        {9, 20, 20, 3, 3, 2},
                        {50, 40, 40, 3, 3, 2},
                        {2, 129, 129, 8, 2, 33, 0, 0, Layout::kCache},
                        {2, 201, 201, 4, 2, 64, 0, 0.1, Layout::kFused, 1, Arithmetic::kBf16}};
  const int threads = NumThreads();
  ForEachTarget([&] {
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::PrintToString(c));
      SetNumThreads(1);
      Problem<float> one(c);
      simd::AttentionForward(one.a);
      simd::AttentionBackward(one.a);
      for (const int n : {2, 3, 7}) {
        SetNumThreads(n);
        Problem<float> many(c);
        simd::AttentionForward(many.a);
        simd::AttentionBackward(many.a);
        EXPECT_TRUE(SameBits(one.z, many.z));
        EXPECT_TRUE(SameBits(one.lse, many.lse));
        EXPECT_TRUE(SameBits(one.dq, many.dq));
        EXPECT_TRUE(SameBits(one.dk, many.dk));
        EXPECT_TRUE(SameBits(one.dv, many.dv));
      }
    }
  });
  SetNumThreads(threads);
}

TEST(Attention, ANanInAQuerySurfacesInItsRowAlone) {
  ForEachTarget([] {
    for (const int64_t D : {2, 20}) {
      const Case c{1, 100, 100, 2, 1, D};
      Problem<float> clean(c);
      simd::AttentionForward(clean.a);
      Problem<float> p = clean;
      p.Query(0, 70, 1)[D - 1] = kNan;
      simd::AttentionForward(p.a);
      for (int64_t t = 0; t < c.T; ++t) {
        for (int64_t i = 0; i < c.H * D; ++i) {
          const bool poisoned = t == 70 && i >= D;
          const float z = p.z[t * c.H * D + i];
          EXPECT_EQ(std::isnan(z), poisoned);
          if (!poisoned) {
            EXPECT_EQ(z, clean.z[t * c.H * D + i]);
          }
        }
      }
      EXPECT_TRUE(std::isnan(p.lse[c.T + 70]));
    }
  });
}

// ---- Rotary positions and a cache

// Rotates and attends `length` new positions from `first` on, numbered from `number`; keys and
// values of earlier calls stay in the cache.
struct CachedHead {
  static constexpr int64_t kH = 4, kKv = 2, kD = 6, kRoom = 7;
  std::vector<float> cos, sin, k = std::vector<float>(kRoom * kKv * kD), v = k;

  CachedHead() {
    for (int64_t p = 0; p < kRoom; ++p) {
      for (int64_t i = 0; i < kD / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / kD);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  void Turn(float* x, int64_t heads, int64_t length, int64_t number) const {
    RopeArgs<> a;
    a.B = 1, a.T_ = length, a.heads = heads, a.D = kD, a.half = kD / 2;
    a.x = x, a.row = heads * kD;
    a.cos = cos.data(), a.sin = sin.data(), a.offset = number;
    simd::Rope(a);
  }
  std::vector<float> Run(int64_t first, int64_t length, int64_t number) {
    auto q = RandomArray(kRoom * kH * kD, 11), new_k = RandomArray(kRoom * kKv * kD, 12);
    const auto new_v = RandomArray(kRoom * kKv * kD, 13);
    std::copy_n(&new_k[first * kKv * kD], length * kKv * kD, &k[first * kKv * kD]);
    std::copy_n(&new_v[first * kKv * kD], length * kKv * kD, &v[first * kKv * kD]);
    Turn(&q[first * kH * kD], kH, length, number);
    Turn(&k[first * kKv * kD], kKv, length, number);
    std::vector<float> z(length * kH * kD);
    AttentionArgs<> a;
    a.B = 1, a.T_ = length, a.S = first + length, a.H = kH, a.Hkv = kKv, a.D = kD;
    a.scale = 1 / std::sqrt(6.0f);
    a.q = &q[first * kH * kD], a.q_row = kH * kD;
    a.k = k.data(), a.v = v.data(), a.kv_row = kKv * kD, a.kv_head = kD;
    a.z = z.data();
    simd::AttentionForward(a);
    return z;
  }
};

TEST(LessonRow24, TheTokenAfterTwoCachedOnesIsAtPositionTwo) {
  ForEachTarget([] {
    const std::vector<float> whole = CachedHead().Run(0, 7, 0);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{3, 4}, {2, 1, 4}, {1, 1, 1, 1, 1, 1, 1}}) {
      CachedHead head;
      std::vector<float> pieces;
      int64_t first = 0;
      for (const int64_t length : chunks) {
        const auto z = head.Run(first, length, first);
        pieces.insert(pieces.end(), z.begin(), z.end());
        first += length;
      }
      EXPECT_TRUE(SameBits(pieces, whole));
    }
    CachedHead restarted;
    auto pieces = restarted.Run(0, 2, 0);
    const auto rest = restarted.Run(2, 5, 0);
    pieces.insert(pieces.end(), rest.begin(), rest.end());
    EXPECT_GT(RelativeError(pieces, whole), 0.01) << "positions that restart must show";
  });
}

}  // namespace
}  // namespace heed
