// The fast product against the reference in double, and the promises about its bits.
#include "kernels/simd/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/matmul.h"
#include "support/compare.h"
#include "support/dual.h"
#include "support/targets.h"
#include "tensor/convert.h"

namespace heed {
namespace {

constexpr double kEps = 0x1p-24;  // half an ulp of 1
constexpr float kGuard = -12345;

enum class Residual { kNone, kApart, kInPlace };

struct Case {
  int64_t M, N, K;
  bool a_transposed = false, b_transposed = false;
  bool accumulate = false, bias = false;
  Residual residual = Residual::kNone;
  Epilogue epilogue = Epilogue::kNone;
  int64_t a_gap = 0, b_gap = 0, c_gap = 0;  // leading dimension minus width
  Arithmetic arithmetic = Arithmetic::kF32;

  std::string Name() const {
    return std::to_string(M) + "x" + std::to_string(N) + "x" + std::to_string(K) +
           (a_transposed ? " T" : " N") + (b_transposed ? "T" : "N") +
           (accumulate ? " accumulate" : "") + (bias ? " bias" : "") +
           (residual != Residual::kNone ? " residual" : "") + " epilogue " +
           std::to_string(static_cast<int>(epilogue)) + " " + std::string(NameOf(arithmetic));
  }
};

// A product's operands in arrays of exactly the length that it may touch.
template <class T>
struct Product {
  Case shape;
  std::vector<T> a, b, bias, residual, c, aux;
  MatmulArgs<T> args;

  static int64_t Length(int64_t rows, int64_t columns, int64_t ld) {
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * ld + columns;
  }

  Product(const Case& s, uint32_t stream) : shape(s) {
    const int64_t lda = (s.a_transposed ? s.M : s.K) + s.a_gap;
    const int64_t ldb = (s.b_transposed ? s.K : s.N) + s.b_gap, ldc = s.N + s.c_gap;
    a = RandomArray<T>(s.a_transposed ? Length(s.K, s.M, lda) : Length(s.M, s.K, lda), stream);
    b = RandomArray<T>(s.b_transposed ? Length(s.N, s.K, ldb) : Length(s.K, s.N, ldb), stream + 1);
    if (s.bias) bias = RandomArray<T>(s.N, stream + 2);
    if (s.residual == Residual::kApart)
      residual = RandomArray<T>(Length(s.M, s.N, ldc), stream + 3);
    c = RandomArray<T>(Length(s.M, s.N, ldc), stream + (s.residual == Residual::kNone ? 4 : 3));
    if (s.epilogue != Epilogue::kNone) aux = RandomArray<T>(c.size(), stream + 5, 2);
    for (size_t i = 0; i < c.size(); ++i) {
      if (static_cast<int64_t>(i) % ldc < s.N) continue;
      c[i] = kGuard;
      if (!aux.empty()) aux[i] = kGuard;
    }
    args.M = s.M, args.N = s.N, args.K = s.K;
    args.a_row = s.a_transposed ? 1 : lda, args.a_col = s.a_transposed ? lda : 1;
    args.b_row = s.b_transposed ? 1 : ldb, args.b_col = s.b_transposed ? ldb : 1;
    args.ldc = ldc;
    args.accumulate = s.accumulate;
    args.epilogue = s.epilogue;
    args.arithmetic = s.arithmetic;
  }

  // The arguments of the product of rows `from` to `to`.
  MatmulArgs<T> Rows(int64_t from, int64_t to) {
    MatmulArgs<T> out = args;
    out.M = to - from;
    out.a = a.data() + from * args.a_row;
    out.b = b.data();
    out.c = c.data() + from * args.ldc;
    if (!bias.empty()) out.bias = bias.data();
    if (shape.residual == Residual::kApart) out.residual = residual.data() + from * args.ldc;
    if (shape.residual == Residual::kInPlace) out.residual = out.c;
    if (!aux.empty()) out.aux = aux.data() + from * args.ldc;
    return out;
  }
  MatmulArgs<T> All() { return Rows(0, shape.M); }
};

bool SameBits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

// Checks simd against reference<double>, in bf16 with operands rounded alike: every sum of K
// products has at most K + 3 roundings after each of its terms, so the error is at most (K +
// 4)·eps·(|A||B| + |bias| + |residual| + |c|).
void CheckAgainstReference(const Case& shape, uint32_t stream) {
  SCOPED_TRACE(shape.Name());
  Product<float> got(shape, stream);
  Product<double> want(shape, stream), size(shape, stream);
  ASSERT_EQ(got.a.size(), want.a.size());
  simd::Matmul(got.All());
  reference::Matmul(want.All());
  for (auto* array : {&size.a, &size.b, &size.bias, &size.residual, &size.c}) {
    for (double& x : *array) x = std::abs(x);
  }
  const Product<double> before(shape, stream);
  size.args.epilogue = Epilogue::kNone;
  size.aux.clear();
  reference::Matmul(size.All());
  for (size_t i = 0; i < got.c.size(); ++i) {
    if (static_cast<int64_t>(i) % got.args.ldc >= shape.N) {
      ASSERT_EQ(got.c[i], kGuard) << i;
      if (!got.aux.empty()) {
        ASSERT_EQ(got.aux[i], kGuard) << i;
      }
      continue;
    }
    const double bound = (shape.K + 4) * kEps * size.c[i];
    if (shape.epilogue == Epilogue::kNone) {
      ASSERT_LE(std::abs(got.c[i] - want.c[i]), bound) << i;
    } else if (shape.epilogue == Epilogue::kGelu) {
      // |gelu'| < 1.13; the function itself is good to a few ulp of max(1, |x|).
      ASSERT_LE(std::abs(got.c[i] - want.c[i]), bound) << i;
      ASSERT_LE(std::abs(got.aux[i] - want.aux[i]),
                1.13 * bound + 16 * kEps * std::max(1.0, std::abs(want.c[i])))
          << i;
    } else {
      ASSERT_LE(std::abs(got.c[i] - want.c[i]), 1.13 * bound + 16 * kEps * size.c[i]) << i;
      ASSERT_LE(std::abs(got.aux[i] - want.aux[i]),
                16 * kEps * std::max(1.0, std::abs(before.aux[i])))
          << i;
    }
  }
}

// A random size, mostly ragged, often small, sometimes past the point where panels are packed.
int64_t RandomSize(const RandomKey& key, uint64_t index) {
  const int64_t most = std::array{3, 20, 70, 150}[RandomBelow(key, 2 * index, 4)];
  return static_cast<int64_t>(RandomBelow(key, 2 * index + 1, most + 1));
}

Case RandomCase(uint32_t seed) {
  const RandomKey key{seed, 0, kTextStream};
  Case out;
  out.M = RandomSize(key, 0), out.N = RandomSize(key, 1), out.K = RandomSize(key, 2);
  const auto coin = [&](int index) { return RandomBelow(key, 100 + index, 2) == 1; };
  out.a_transposed = coin(0), out.b_transposed = coin(1), out.bias = coin(2);
  out.a_gap = coin(3) ? 3 : 0, out.b_gap = coin(4) ? 5 : 0, out.c_gap = coin(5) ? 7 : 0;
  switch (RandomBelow(key, 200, 6)) {
    case 0:
      out.accumulate = true;
      out.bias = false;
      break;
    case 1:
      out.residual = Residual::kApart;
      break;
    case 2:
      out.residual = Residual::kInPlace;
      break;
    case 3:
      out.epilogue = Epilogue::kGelu;
      break;
    case 4:
      out.epilogue = Epilogue::kGeluBackward;
      break;
  }
  return out;
}

constexpr Arithmetic kArithmetics[] = {Arithmetic::kF32, Arithmetic::kBf16};

// Every layout with every epilogue, at the given size.
std::vector<Case> AllKinds(int64_t M, int64_t N, int64_t K,
                           Arithmetic arithmetic = Arithmetic::kF32) {
  std::vector<Case> out;
  for (int layout = 0; layout < 4; ++layout) {
    for (int kind = 0; kind < 6; ++kind) {
      Case c;
      c.M = M, c.N = N, c.K = K, c.arithmetic = arithmetic;
      c.a_transposed = layout % 2 == 1, c.b_transposed = layout / 2 == 1;
      c.bias = kind > 1;
      c.accumulate = kind == 1;
      if (kind == 2) c.residual = Residual::kApart;
      if (kind == 3) c.residual = Residual::kInPlace;
      if (kind == 4) c.epilogue = Epilogue::kGelu;
      if (kind == 5) c.epilogue = Epilogue::kGeluBackward;
      out.push_back(c);
    }
  }
  return out;
}

// Every layout and every epilogue, but not all their pairs.
std::vector<Case> MixedKinds(int64_t M, int64_t N, int64_t K,
                             Arithmetic arithmetic = Arithmetic::kF32) {
  std::vector<Case> all = AllKinds(M, N, K, arithmetic), out;
  for (int kind = 0; kind < 6; ++kind) out.push_back(all[kind + 6 * (kind % 4)]);
  return out;
}

TEST(Matmul, ReferenceByHand) {
  // [1 2 3; 4 5 6] · [1 0; 2 1; 0 3] = [5 11; 14 23]
  const std::vector<double> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 2, 1, 0, 3}, bias = {10, 20};
  const std::vector<double> a_columns = {1, 4, 2, 5, 3, 6}, b_columns = {1, 2, 0, 0, 1, 3};
  std::vector<double> c = {100, 200, -1, 300, 400};
  MatmulArgs<double> args;
  args.M = 2, args.N = 2, args.K = 3, args.ldc = 3;
  args.a = a.data(), args.a_row = 3, args.b = b.data(), args.b_row = 2, args.c = c.data();
  args.accumulate = true;
  reference::Matmul(args);
  EXPECT_EQ(c, (std::vector<double>{105, 211, -1, 314, 423}));
  args.accumulate = false;
  args.bias = bias.data(), args.residual = c.data();
  reference::Matmul(args);
  EXPECT_EQ(c, (std::vector<double>{120, 242, -1, 338, 466}));
  args.bias = args.residual = nullptr;
  args.a = a_columns.data(), args.a_row = 1, args.a_col = 2;
  args.b = b_columns.data(), args.b_row = 1, args.b_col = 3;
  reference::Matmul(args);
  EXPECT_EQ(c, (std::vector<double>{5, 11, -1, 14, 23}));
}

TEST(Matmul, GeluKnownValuesAndDerivative) {
  // x, gelu(x), gelu'(x), computed with 30 digits.
  const double known[][3] = {{-3.0, -0.00363739208177301884, -0.0115841666309697262},
                             {-1.0, -0.158808009391723295, -0.0829640838457825551},
                             {-0.5, -0.154285990174856078, 0.132630096465357688},
                             {0.0, 0.0, 0.5},
                             {0.5, 0.345714009825143922, 0.867369903534642312},
                             {1.0, 0.841191990608276705, 1.08296408384578256},
                             {2.0, 1.95459769408777502, 1.08609925662361838}};
  for (const auto& [x, y, dy] : known) {
    EXPECT_NEAR(reference::Gelu(x), y, 1e-15) << x;
    EXPECT_NEAR(reference::GeluDerivative(x), dy, 1e-15) << x;
  }
  for (double x = -12; x <= 12; x += 0.01) {
    EXPECT_NEAR(reference::GeluDerivative(x), reference::Gelu(Dual(x, 1)).slope, 4e-15) << x;
  }
}

TEST(Matmul, AgreesWithReferenceAtRandomSizes) {
  ForEachTarget([] {
    for (uint32_t seed = 0; seed < 300; ++seed) {
      Case shape = RandomCase(seed);
      shape.arithmetic = kArithmetics[seed / 6 % 2];
      CheckAgainstReference(shape, 10 * seed);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(Matmul, AgreesWithReferenceInEveryKind) {
  ForEachTarget([] {
    for (const auto& [M, N, K] :
         {std::array{61, 83, 97}, std::array{3, 83, 97}, std::array{61, 6, 24},
          std::array{61, 13, 18}, std::array{61, 27, 64}}) {
      for (const Arithmetic arithmetic : kArithmetics) {
        for (const Case& shape : AllKinds(M, N, K, arithmetic)) CheckAgainstReference(shape, 77);
      }
    }
  });
}

// More than one block of K, of M and of N.
TEST(Matmul, AgreesWithReferenceInSeveralBlocks) {
  ForEachTarget([] {
    for (const Case& shape : MixedKinds(61, 37, 2100)) CheckAgainstReference(shape, 99);
    for (const Case& shape : MixedKinds(61, 37, 2101, Arithmetic::kBf16)) {
      CheckAgainstReference(shape, 99);
    }
    Case shape;
    shape.M = 1100, shape.N = 9, shape.K = 1020, shape.epilogue = Epilogue::kGelu;
    CheckAgainstReference(shape, 99);
    shape.M = 61, shape.N = 1100, shape.b_transposed = true;
    CheckAgainstReference(shape, 99);
  });
}

std::vector<uint16_t> ToBf16(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), FloatToBf16);
  return out;
}

// Shapes whose factors may be stored in bfloat16: few rows, packed ones, several blocks of K.
constexpr std::array<int64_t, 3> kStoredSizes[] = {{3, 84, 96},   {61, 38, 24},   {62, 84, 98},
                                                   {130, 66, 70}, {62, 34, 2102}, {34, 150, 130}};

TEST(Matmul, FactorsStoredInBf16GiveTheBitsOfRoundingThemWhenTheyArePacked) {
  ForEachTarget([] {
    for (const auto& [M, N, K] : kStoredSizes) {
      for (Case shape : AllKinds(M, N, K, Arithmetic::kBf16)) {
        SCOPED_TRACE(shape.Name());
        shape.c_gap = 6;
        Product<float> packed(shape, 8);
        simd::Matmul(packed.All());
        const std::vector<uint16_t> a = ToBf16(packed.a), b = ToBf16(packed.b);
        for (int which = 1; which < 4; ++which) {
          Product<float> stored(shape, 8);
          MatmulArgs<> args = stored.All();
          if (which & 1) args.a = nullptr, args.a_bf16 = a.data();
          if (which & 2) args.b = nullptr, args.b_bf16 = b.data();
          simd::Matmul(args);
          ASSERT_TRUE(SameBits(stored.c, packed.c)) << which;
          ASSERT_TRUE(SameBits(stored.aux, packed.aux)) << which;
        }
      }
    }
  });
}

// K may be odd where words run down the rows of both factors, as in a weight's gradient.
TEST(Matmul, StoredFactorsOfAnOddNumberOfRows) {
  ForEachTarget([] {
    for (const int64_t K : {1, 65, 131}) {
      Case shape{62, 84, K, /*a_transposed=*/true};
      shape.arithmetic = Arithmetic::kBf16;
      Product<float> packed(shape, 8), stored(shape, 8);
      simd::Matmul(packed.All());
      const std::vector<uint16_t> a = ToBf16(packed.a), b = ToBf16(packed.b);
      MatmulArgs<> args = stored.All();
      args.a_bf16 = a.data(), args.b_bf16 = b.data();
      simd::Matmul(args);
      EXPECT_TRUE(SameBits(stored.c, packed.c)) << K;
    }
  });
}

// What is stored in bfloat16 is what other epilogues give, rounded; and guards stay.
TEST(Matmul, ResultsInBf16AreThoseInFloatRounded) {
  ForEachTarget([] {
    for (const auto& [M, N, K] : kStoredSizes) {
      for (const bool bias : {false, true}) {
        Case shape{M, N, K};
        shape.bias = bias, shape.c_gap = 6, shape.arithmetic = Arithmetic::kBf16;
        SCOPED_TRACE(shape.Name());
        Product<float> plain(shape, 9), gelu(shape, 9), product(shape, 9);
        simd::Matmul(plain.All());
        gelu.aux.resize(gelu.c.size());
        MatmulArgs<> args = gelu.All();
        args.epilogue = Epilogue::kGelu;
        simd::Matmul(args);

        constexpr uint16_t kMark = 0x1234;
        const auto result = [&](Epilogue epilogue, std::vector<uint16_t>* aux) {
          std::vector<uint16_t> c(plain.c.size(), kMark);
          MatmulArgs<> stored = product.All();
          stored.c = nullptr;
          stored.epilogue = epilogue;
          stored.c_bf16 = c.data();
          stored.aux_bf16 = aux->data();
          simd::Matmul(stored);
          return c;
        };
        std::vector<uint16_t> slope(plain.c.size(), kMark), factor = ToBf16(gelu.aux);
        const auto c = result(Epilogue::kNone, &slope);
        const auto h = result(Epilogue::kGeluAndSlope, &slope);
        const auto times = result(Epilogue::kTimes, &factor);
        for (int64_t i = 0; i < M * (N + 6) - 6; ++i) {
          if (i % (N + 6) >= N) {
            ASSERT_TRUE(c[i] == kMark && h[i] == kMark && times[i] == kMark && slope[i] == kMark);
            continue;
          }
          ASSERT_EQ(c[i], FloatToBf16(plain.c[i])) << i;
          ASSERT_EQ(h[i], FloatToBf16(gelu.aux[i])) << i;
          ASSERT_EQ(times[i], FloatToBf16(plain.c[i] * Bf16ToFloat(factor[i]))) << i;
          // Half an ulp is 2^-8 of the number; the derivative itself is good to some 16 eps.
          const double want = reference::GeluDerivative(static_cast<double>(plain.c[i]));
          ASSERT_NEAR(Bf16ToFloat(slope[i]), want, 0x1p-8 * std::abs(want) + 16 * kEps) << i;
        }
      }
    }
  });
}

// Integers, whose sums are exact: both tables write the same.
TEST(Matmul, ReferenceReadsAndWritesTheSameBf16) {
  ForEachTarget([] {
    for (const auto& [M, N, K] : {std::array{62, 84, 98}, std::array{5, 34, 20}}) {
      const auto small = [](int64_t n, uint32_t stream) {
        std::vector<float> x = RandomArray<float>(n, stream, 2);
        for (float& v : x) v = std::nearbyint(v);
        return ToBf16(x);
      };
      const auto a = small(M * K, 1), b = small(K * N, 2);
      const auto run = [&](auto matmul, Epilogue epilogue, std::vector<uint16_t> aux) {
        std::vector<uint16_t> c(M * N);
        MatmulArgs<> args{M, N, K};
        args.a_row = K, args.b_row = N, args.ldc = N;
        args.a_bf16 = a.data(), args.b_bf16 = b.data();
        args.c_bf16 = c.data(), args.aux_bf16 = aux.data();
        args.epilogue = epilogue, args.arithmetic = Arithmetic::kBf16;
        matmul(args);
        c.insert(c.end(), aux.begin(), aux.end());
        return c;
      };
      for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kTimes}) {
        const std::vector<uint16_t> aux = small(M * N, 3);
        EXPECT_EQ(run(simd::Matmul, epilogue, aux), run(reference::Matmul<float>, epilogue, aux));
      }
      const std::vector<uint16_t> room(M * N);
      const auto fast = run(simd::Matmul, Epilogue::kGeluAndSlope, room);
      const auto plain = run(reference::Matmul<float>, Epilogue::kGeluAndSlope, room);
      for (size_t i = 0; i < fast.size(); ++i) {
        const double want = Bf16ToFloat(plain[i]);
        ASSERT_NEAR(Bf16ToFloat(fast[i]), want, 0x1p-7 * std::abs(want) + 16 * kEps) << i;
      }
    }
  });
}

TEST(Matmul, BitsDoNotDependOnThreads) {
  ForEachTarget([] {
    for (const auto& [M, N, K] :
         {std::array{130, 150, 70}, std::array{5, 700, 150}, std::array{1030, 24, 6}}) {
      std::vector<Case> shapes = MixedKinds(M, N, K);
      for (Case& c : MixedKinds(M, N, K, Arithmetic::kBf16)) shapes.push_back(c);
      for (const Case& shape : shapes) {
        SCOPED_TRACE(shape.Name());
        Product<float> alone(shape, 5);
        SetNumThreads(1);
        simd::Matmul(alone.All());
        for (int threads : {2, 3}) {
          Product<float> team(shape, 5);
          SetNumThreads(threads);
          simd::Matmul(team.All());
          EXPECT_TRUE(SameBits(team.c, alone.c));
          EXPECT_TRUE(SameBits(team.aux, alone.aux));
        }
      }
    }
  });
  SetNumThreads(HardwareThreads());
}

TEST(Matmul, ARowsBitsDependOnNothingButTheRow) {
  ForEachTarget([] {
    for (const auto& [M, N, K] :
         {std::array{131, 75, 93}, std::array{53, 5, 6}, std::array{53, 24, 6}}) {
      std::vector<Case> shapes = AllKinds(M, N, K);
      for (Case& c : AllKinds(M, N, K, Arithmetic::kBf16)) shapes.push_back(c);
      for (const Case& shape : shapes) {
        SCOPED_TRACE(shape.Name());
        Product<float> whole(shape, 6);
        simd::Matmul(whole.All());
        for (int64_t cut : {1, 2, 7, 14, 40}) {
          Product<float> slices(shape, 6);
          for (int64_t from = 0; from < shape.M; from += cut) {
            simd::Matmul(slices.Rows(from, std::min<int64_t>(from + cut, shape.M)));
          }
          EXPECT_TRUE(SameBits(slices.c, whole.c)) << "cut " << cut;
          EXPECT_TRUE(SameBits(slices.aux, whole.aux)) << "cut " << cut;
        }
      }
    }
  });
}

// One chain of multiply-adds in the order of k: parts of K, added up, are the whole. In bf16 they
// may be taken by twos.
TEST(Matmul, PartsOfKAccumulateToTheBitsOfTheWhole) {
  ForEachTarget([] {
    for (const auto& [M, arithmetic] :
         {std::pair{9, Arithmetic::kF32}, std::pair{60, Arithmetic::kF32},
          std::pair{9, Arithmetic::kBf16}, std::pair{60, Arithmetic::kBf16}}) {
      Case shape;
      shape.M = M, shape.N = 70, shape.K = 1500, shape.arithmetic = arithmetic;
      Product<float> whole(shape, 7), parts(shape, 7);
      simd::Matmul(whole.All());
      int64_t done = 0;
      const bool even = arithmetic == Arithmetic::kBf16;
      for (int64_t K : even ? std::array{2, 6, 1100, 392} : std::array{1, 6, 1100, 393}) {
        MatmulArgs<> args = parts.All();
        args.K = K;
        args.a += done * args.a_col;
        args.b += done * args.b_row;
        args.accumulate = done > 0;
        simd::Matmul(args);
        done += K;
      }
      ASSERT_EQ(done, shape.K);
      EXPECT_TRUE(SameBits(parts.c, whole.c)) << M;
    }
  });
}

TEST(Matmul, AResidualInPlaceHasTheBitsOfOneApart) {
  ForEachTarget([] {
    for (const auto& [M, N, K] : {std::array{60, 70, 2100}, std::array{4, 300, 2100}}) {
      Case shape;
      shape.M = M, shape.N = N, shape.K = K, shape.bias = true;
      shape.residual = Residual::kApart;
      Product<float> apart(shape, 8);
      shape.residual = Residual::kInPlace;
      Product<float> in_place(shape, 8);
      ASSERT_TRUE(SameBits(apart.residual, in_place.c));
      simd::Matmul(apart.All());
      simd::Matmul(in_place.All());
      EXPECT_TRUE(SameBits(apart.c, in_place.c));
    }
  });
}

TEST(Matmul, NotANumberStaysInItsRowAndColumn) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&] {
    for (int64_t M : {6, 59}) {
      std::vector<Case> shapes = AllKinds(M, 67, 71);
      for (Case& c : AllKinds(M, 67, 71, Arithmetic::kBf16)) shapes.push_back(c);
      for (const Case& shape : shapes) {
        if (shape.epilogue == Epilogue::kGeluBackward) continue;
        SCOPED_TRACE(shape.Name());
        Product<float> product(shape, 9);
        const MatmulArgs<> args = product.All();
        product.a[4 * args.a_row + 70 * args.a_col] = NAN;
        product.b[13 * args.b_row + 66 * args.b_col] = NAN;
        product.a[2 * args.a_row + 5 * args.a_col] = kInfinity;
        simd::Matmul(args);
        for (int64_t i = 0; i < M; ++i) {
          for (int64_t j = 0; j < 67; ++j) {
            const float y = product.c[i * args.ldc + j];
            if (i == 4 || j == 66) {
              EXPECT_TRUE(std::isnan(y)) << i << " " << j;
            } else if (i == 2) {
              EXPECT_EQ(y, std::copysign(kInfinity, product.b[5 * args.b_row + j * args.b_col]));
            } else {
              EXPECT_TRUE(std::isfinite(y)) << i << " " << j;
            }
            if (shape.epilogue == Epilogue::kGelu && (i == 4 || j == 66)) {
              EXPECT_TRUE(std::isnan(product.aux[i * args.ldc + j]));
            }
          }
        }
      }
    }
  });
}

TEST(Matmul, LargeAndSmallNumbers) {
  ForEachTarget([] {
    for (int64_t M : {2, 60}) {
      Case shape;
      shape.M = M, shape.N = 70, shape.K = 60;
      Product<float> product(shape, 1);
      std::fill(product.a.begin(), product.a.end(), 0x1p100f);
      std::fill(product.b.begin(), product.b.end(), 0x1p100f);
      simd::Matmul(product.All());
      for (float y : product.c) ASSERT_EQ(y, HUGE_VALF);
      // Below the smallest normal number: 60 · 2^-140 = 15 · 2^-138 is exact.
      std::fill(product.a.begin(), product.a.end(), 0x1p-70f);
      std::fill(product.b.begin(), product.b.end(), 0x1p-70f);
      simd::Matmul(product.All());
      for (float y : product.c) ASSERT_EQ(y, 0x1.ep-135f);
      std::fill(product.a.begin(), product.a.end(), 1e4f);
      std::fill(product.b.begin(), product.b.end(), -1e4f);
      MatmulArgs<> args = product.All();
      std::vector<float> aux(product.c.size(), -1e4f);
      args.aux = aux.data();
      args.epilogue = Epilogue::kGeluBackward;
      simd::Matmul(args);
      for (float y : product.c) ASSERT_EQ(y, 0);
      for (float y : aux) ASSERT_EQ(y, 0);
    }
  });
}

TEST(Matmul, EmptySums) {
  ForEachTarget([] {
    for (int64_t M : {1, 50}) {
      for (const Arithmetic arithmetic : kArithmetics) {
        for (const Case& shape : AllKinds(M, 90, 0, arithmetic)) CheckAgainstReference(shape, 3);
      }
    }
  });
}

// x, and x rounded to 8 significant bits by hand.
TEST(MatmulBf16, RoundsToNearestTiesToEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float known[][2] = {{1, 1},
                            {0x1.01p0f, 0x1p0f},         // a tie, down to even
                            {0x1.03p0f, 0x1.04p0f},      // a tie, up to even
                            {0x1.010002p0f, 0x1.02p0f},  // just above a tie
                            {0x1.02fffep0f, 0x1.02p0f},  // just below one
                            {-0x1.03p20f, -0x1.04p20f},
                            {0x1.ffp-3f, 0x1p-2f},           // a carry into the exponent
                            {0x1.fep127f, 0x1.fep127f},      // the largest
                            {0x1.fefffep127f, 0x1.fep127f},  // rounds down to it
                            {0x1.fffffep127f, kInfinity},
                            {-kInfinity, -kInfinity},
                            {0, 0}};
  constexpr int64_t kCount = std::size(known);
  ForEachTarget([&] {
    // As A and as B, where they lie and packed, for tall, wide and transposed operands.
    for (const int64_t M : {1, 3, 90}) {
      for (const int64_t N : {1, 5, 90}) {
        for (const bool transposed : {false, true}) {
          for (const bool on_the_right : {false, true}) {
            Case shape;
            shape.M = M, shape.N = N, shape.K = 63;
            shape.a_transposed = shape.b_transposed = transposed;
            shape.arithmetic = Arithmetic::kBf16;
            Product<float> product(shape, 1);
            const MatmulArgs<> args = product.All();
            for (int64_t k : {0, 1, 30, 62}) {
              std::fill(product.a.begin(), product.a.end(), 0);
              std::fill(product.b.begin(), product.b.end(), 0);
              const auto x = [&](int64_t n) { return known[n % kCount]; };
              for (int64_t i = 0; i < M; ++i) {
                product.a[i * args.a_row + k * args.a_col] = on_the_right ? 1 : x(i + k)[0];
              }
              for (int64_t j = 0; j < N; ++j) {
                product.b[k * args.b_row + j * args.b_col] = on_the_right ? x(j + k)[0] : 1;
              }
              simd::Matmul(args);
              for (int64_t i = 0; i < M; ++i) {
                for (int64_t j = 0; j < N; ++j) {
                  ASSERT_EQ(product.c[i * N + j], x((on_the_right ? j : i) + k)[1])
                      << shape.Name() << " at " << i << " " << j << " " << k;
                }
              }
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace heed
