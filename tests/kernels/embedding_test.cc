#include "kernels/simd/embedding.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kernels/differential.h"
#include "kernels/reference/embedding.h"
#include "support/compare.h"
#include "support/dual.h"

namespace heed {
namespace {

template <class T>
struct Embedding {
  int64_t B, T_, C, V, positions;
  std::vector<int32_t> tokens, offsets;
  std::vector<T> wte, wpe, x, dx, dwte, dwpe;
  int64_t offset = 0;
  bool has_wpe = true, accumulate = false;

  Embedding(int64_t B_, int64_t time, int64_t C_, int64_t V_)
      : B(B_),
        T_(time),
        C(C_),
        V(V_),
        positions(time + 10),
        wte(ExactArray<T>(V * C, 1)),
        wpe(ExactArray<T>(positions * C, 2)),
        x(B * T_ * C),
        dx(ExactArray<T>(B * T_ * C, 3)),
        dwte(ExactArray<T>(V * C, 4)),
        dwpe(ExactArray<T>(T_ * C, 5)) {
    for (int64_t i = 0; i < B * T_; ++i) {
      tokens.push_back(static_cast<int32_t>(RandomBelow({7, 0, 0}, i, V)));
    }
  }
  EmbeddingArgs<T> args() {
    EmbeddingArgs<T> a;
    a.B = B, a.T_ = T_, a.C = C, a.V = V, a.tokens = tokens.data(), a.offset = offset;
    a.offsets = offsets.empty() ? nullptr : offsets.data(), a.accumulate = accumulate;
    a.wte = wte.data(), a.wpe = has_wpe ? wpe.data() : nullptr, a.x = x.data();
    a.dx = dx.data(), a.dwte = dwte.data(), a.dwpe = has_wpe ? dwpe.data() : nullptr;
    return a;
  }
};

TEST(Embedding, WorksByHand) {
  ForEachTarget([] {
    Embedding<float> e(2, 2, 2, 3);
    e.tokens = {2, 0, 2, 2};
    e.wte = {1, 2, 10, 20, 100, 200};
    e.wpe = {0, 0, 0, 0, 0, 0, 0.5, 0.25, -1, -2, 0.125, 0};
    e.offset = 3;
    simd::EmbeddingForward(e.args());
    EXPECT_EQ(e.x, (std::vector<float>{100.5, 200.25, 0, 0, 100.5, 200.25, 99, 198}));
    e.offsets = {3, 4};
    simd::EmbeddingForward(e.args());
    EXPECT_EQ(e.x, (std::vector<float>{100.5, 200.25, 0, 0, 99, 198, 100.125, 200}));
    e.has_wpe = false;
    simd::EmbeddingForward(e.args());
    EXPECT_EQ(e.x, (std::vector<float>{100, 200, 1, 2, 100, 200, 100, 200}));
    e.has_wpe = true;
    e.dx = {1, 2, 3, 4, 5, 6, 7, 8};
    e.dwte = {100, 0, 0, 0, 0, 0};
    e.dwpe = {50, 50, 50, 50};
    simd::EmbeddingBackward(e.args());
    EXPECT_EQ(e.dwte, (std::vector<float>{103, 4, 0, 0, 13, 16}));
    EXPECT_EQ(e.dwpe, (std::vector<float>{6, 8, 10, 12}));
    e.accumulate = true;
    simd::EmbeddingBackward(e.args());
    EXPECT_EQ(e.dwpe, (std::vector<float>{12, 16, 20, 24}));
  });
}

TEST(Embedding, BackwardOfReferenceIsTheDerivative) {
  Embedding<double> e(2, 3, 4, 3);
  e.dwte.assign(e.dwte.size(), 0);
  reference::EmbeddingBackward(e.args());
  const auto derivative = [&](auto member, size_t count) {
    std::vector<double> slopes;
    for (size_t i = 0; i < count; ++i) {
      Embedding<Dual> dual(2, 3, 4, 3);
      (dual.*member)[i].slope = 1;
      reference::EmbeddingForward(dual.args());
      double slope = 0;
      for (size_t k = 0; k < dual.x.size(); ++k) slope += e.dx[k] * dual.x[k].slope;
      slopes.push_back(slope);
    }
    return slopes;
  };
  EXPECT_LE(RelativeError(e.dwte, derivative(&Embedding<Dual>::wte, 12)), 1e-15);
  EXPECT_LE(RelativeError(e.dwpe, derivative(&Embedding<Dual>::wpe, 12)), 1e-15);
}

RC_GTEST_PROP(Embedding, FastEqualsReferenceAtAnySize, ()) {
  const int64_t B = *rc::gen::inRange<int64_t>(1, 8), T = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t C = *rc::gen::inRange<int64_t>(1, 150), V = *rc::gen::inRange<int64_t>(1, 70);
  const bool has_wpe = *rc::gen::arbitrary<bool>(), accumulate = *rc::gen::arbitrary<bool>();
  const int64_t offset = *rc::gen::inRange<int64_t>(0, 10);
  Embedding<double> want(B, T, C, V);
  Embedding<float> got(B, T, C, V);
  got.has_wpe = want.has_wpe = has_wpe;
  got.accumulate = want.accumulate = accumulate;
  got.offset = want.offset = offset;
  reference::EmbeddingForward(want.args());
  reference::EmbeddingBackward(want.args());
  bool same = true;
  ForEachTarget([&] {
    Embedding<float> fast = got;
    simd::EmbeddingForward(fast.args());
    simd::EmbeddingBackward(fast.args());
    same = same && Cast<double>(fast.x) == want.x && Cast<double>(fast.dwte) == want.dwte &&
           Cast<double>(fast.dwpe) == want.dwpe;
  });
  RC_ASSERT(same);
}

TEST(Embedding, BitsDoNotDependOnThreads) {
  EXPECT_TRUE(SameForAnyTeam([] {
    Embedding<float> e(9, 64, 130, 65);
    e.dx = RandomArray(9 * 64 * 130, 8);  // whose sums round
    simd::EmbeddingForward(e.args());
    simd::EmbeddingBackward(e.args());
    return std::vector{e.x, e.dwte, e.dwpe};
  }));
}

}  // namespace
}  // namespace heed
