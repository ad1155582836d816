// Products with a B of few bits: against the reference, which unpacks it, against the product with
// the same numbers in float32, and the promises about their bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/random.h"
#include "kernels/differential.h"
#include "kernels/reference/matmul.h"
#include "kernels/simd/matmul.h"

namespace heed {
namespace {

constexpr double kEps = 0x1p-24;  // half an ulp of 1
constexpr BlockType kTypes[] = {BlockType::kBF16, BlockType::kQ8_0, BlockType::kQ4_0};
constexpr Arithmetic kArithmetics[] = {Arithmetic::kF32, Arithmetic::kBf16, Arithmetic::kInt8};

bool SameBits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

struct Product {
  int64_t M, N, K;
  std::vector<float> a, b, bias, residual, c;  // b is what packed holds, [N, K]
  Buffer packed;
  MatmulArgs<> args;

  Product(BlockType type, Arithmetic arithmetic, int64_t m, int64_t n, int64_t k)
      : M(m), N(n), K(k), packed(static_cast<size_t>(PackedBytes(type, k, n))) {
    a = RandomArray<float>(M * (K + 3), 1);
    b = RandomArray<float>(N * K, 2);
    bias = RandomArray<float>(N, 3);
    residual = RandomArray<float>(M * (N + 5), 4);
    c.assign(residual.size(), NAN);
    PackFloats(type, K, N, b.data(), 1, K, packed.data());
    args = {M, N, K};
    args.a = a.data(), args.a_row = K + 3;
    args.c = c.data(), args.ldc = N + 5;
    args.bias = bias.data(), args.residual = residual.data();
    args.arithmetic = arithmetic;
    args.packed = {type, K, N, packed.data()};
    for (int64_t j = 0; j < N; ++j) UnpackColumn(args.packed, j, &b[j * K]);
  }
  MatmulArgs<> Widened() const {
    MatmulArgs<> out = args;
    out.packed = {};
    out.b = b.data(), out.b_row = 1, out.b_col = K;
    return out;
  }
  const std::vector<float>& Run() {
    simd::Matmul(args);
    return c;
  }
};

template <class Body>
void ForKinds(const Body& body) {
  for (const BlockType type : kTypes) {
    for (const Arithmetic arithmetic : kArithmetics) {
      SCOPED_TRACE(std::string(NameOf(type)) + " " + std::to_string(static_cast<int>(arithmetic)));
      body(type, arithmetic);
    }
  }
}

int64_t RandomSize(const RandomKey& key, uint64_t index, int64_t unit = 1) {
  const int64_t most = std::array{2, 8, 40, 150}[RandomBelow(key, 2 * index, 4)];
  return unit * (1 + static_cast<int64_t>(RandomBelow(key, 2 * index + 1, most)));
}

// In double, of factors rounded alike. In float32 a sum of K products, bias and residual has at
// most K + 3 roundings behind each of its terms; in whole numbers a sum of K / 32 blocks has one
// for each block, and two for its scales.
TEST(PackedMatmul, AgreesWithTheReferenceAtRandomSizes) {
  ForEachTarget([] {
    ForKinds([](BlockType type, Arithmetic arithmetic) {
      for (uint32_t seed = 0; seed < 25; ++seed) {
        const RandomKey key{seed, 0, kTextStream};
        const int64_t unit = type == BlockType::kBF16 ? 1 : 32;
        Product p(type, arithmetic, RandomSize(key, 0), RandomSize(key, 1),
                  unit == 32 ? 32 * (1 + static_cast<int64_t>(seed % 5)) : RandomSize(key, 2));
        p.Run();
        std::vector<double> a(p.a.begin(), p.a.end()), size_a(a), b(p.b.begin(), p.b.end());
        std::vector<double> bias(p.bias.begin(), p.bias.end()), c(p.c.size()), size(p.c.size());
        std::vector<double> residual(p.residual.begin(), p.residual.end());
        MatmulArgs<double> want{p.M, p.N, p.K};
        want.a = a.data(), want.a_row = p.args.a_row;
        want.c = c.data(), want.ldc = p.args.ldc;
        want.bias = bias.data(), want.residual = residual.data();
        want.arithmetic = arithmetic;
        want.packed = p.args.packed;
        reference::Matmul(want);
        for (auto* array : {&a, &b, &bias, &residual}) {
          for (double& x : *array) x = std::abs(x);
        }
        MatmulArgs<double> sizes = want;
        sizes.packed = {};
        sizes.arithmetic = Arithmetic::kF32;
        sizes.b = b.data(), sizes.b_row = 1, sizes.b_col = p.K;
        sizes.c = size.data();
        reference::Matmul(sizes);
        const bool whole = arithmetic == Arithmetic::kInt8 && unit == 32;
        // Rounding a factor makes it larger by 1/127 of its block's largest, in bf16 by 2^-8.
        const double roundings = (whole ? p.K / 32 : p.K) + 5;
        for (int64_t i = 0; i < p.M; ++i) {
          double largest = 0;
          for (int64_t k = 0; k < p.K; ++k) {
            largest = std::max(largest, a[i * p.args.a_row + k]);
          }
          for (int64_t j = 0; j < p.N; ++j) {
            const int64_t at = i * p.args.ldc + j;
            double extra = 0;
            for (int64_t k = 0; k < p.K; ++k) extra += b[j * p.K + k] * largest / 127;
            ASSERT_LE(std::abs(p.c[at] - c[at]), roundings * kEps * (size[at] + extra))
                << p.M << "x" << p.N << "x" << p.K << " at " << i << " " << j;
          }
        }
      }
    });
  });
}

// In float32 and in bfloat16 it is the product with the widened numbers, to the bit: few rows and
// many, one block of K and several.
TEST(PackedMatmul, HasTheBitsOfTheWidenedProduct) {
  ForEachTarget([] {
    ForKinds([](BlockType type, Arithmetic arithmetic) {
      if (arithmetic == Arithmetic::kInt8) return;
      for (const int64_t M : {1, 2, 7, 8, 40, 61}) {
        for (const auto& [N, K] :
             {std::array{75, 96}, std::array{700, 160}, std::array{33, 2144}}) {
          Product packed(type, arithmetic, M, N, K);
          packed.Run();
          const std::vector<float> got = packed.c;
          packed.c.assign(got.size(), NAN);
          simd::Matmul(packed.Widened());
          EXPECT_TRUE(SameBits(got, packed.c)) << M << "x" << N << "x" << K;
        }
      }
    });
  });
}

// Stored rows, in their order and in another, that are packed while they are multiplied.
TEST(PackedMatmul, RowsThatWaitHaveTheBitsOfPackedOnes) {
  ForEachTarget([] {
    ForKinds([](BlockType type, Arithmetic arithmetic) {
      for (const auto& [N, K] : {std::array{75, 96}, std::array{700, 160}, std::array{33, 2144}}) {
        std::vector<std::byte> stored(static_cast<size_t>(N * K) * SizeOf(type).bytes /
                                      SizeOf(type).elements);
        EncodeBlocks(type, RandomArray<float>(N * K, 5).data(), N * K, stored.data());
        std::vector<int64_t> turned(N);
        for (int64_t j = 0; j < N; ++j) turned[j] = (j + 20) % N;
        for (const std::vector<int64_t>& order : {std::vector<int64_t>(), turned}) {
          for (const int64_t M : {1, 7, 16, 61}) {
            Product p(type, arithmetic, M, N, K);
            PackStored(type, K, N, stored.data(), order, p.packed.data());
            const std::vector<float> want = p.Run();
            p.c.assign(want.size(), NAN);
            p.args.packed = {type, K, N, nullptr, stored.data(), order};
            EXPECT_TRUE(SameBits(p.Run(), want)) << M << "x" << N << "x" << K;
          }
        }
      }
    });
  });
}

// Floats in their file's rows: the product with those rows, brought into another order.
TEST(PackedMatmul, FloatsInAFileHaveTheBitsOfACopy) {
  ForEachTarget([] {
    for (const Arithmetic arithmetic : kArithmetics) {
      for (const auto& [N, K] : {std::array{75, 33}, std::array{700, 160}}) {
        std::vector<int64_t> turned(N);
        for (int64_t j = 0; j < N; ++j) turned[j] = (j + 20) % N;
        for (const std::vector<int64_t>& order : {std::vector<int64_t>(), turned}) {
          for (const int64_t M : {1, 7, 16, 61}) {
            Product p(BlockType::kBF16, arithmetic, M, N, K);
            const std::vector<float> rows = RandomArray<float>(N * K, 5);
            for (int64_t j = 0; j < N; ++j) {
              std::copy_n(&rows[(order.empty() ? j : order[j]) * K], K, &p.b[j * K]);
            }
            simd::Matmul(p.Widened());
            const std::vector<float> want = p.c;
            p.c.assign(want.size(), NAN);
            const auto* stored = reinterpret_cast<const std::byte*>(rows.data());
            p.args.packed = {BlockType::kF32, K, N, nullptr, stored, order};
            EXPECT_TRUE(SameBits(p.Run(), want)) << M << "x" << N << "x" << K;
          }
        }
      }
    }
  });
}

// Each factor moves by half a step, its block's largest / 254, but for the rounding of that.
TEST(PackedMatmul, WholeNumbersAreHalfAStepFromTheNumbers) {
  ForEachTarget([] {
    for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
      Product p(type, Arithmetic::kInt8, 9, 50, 256);
      p.Run();
      for (int64_t i = 0; i < p.M; ++i) {
        for (int64_t j = 0; j < p.N; ++j) {
          double want = double(p.bias[j]) + p.residual[i * p.args.ldc + j], bound = 0;
          double size = std::abs(p.bias[j]) + std::abs(p.residual[i * p.args.ldc + j]);
          for (int64_t k = 0; k < p.K; k += 32) {
            double largest = 0, sum = 0;
            for (int64_t n = k; n < k + 32; ++n) {
              const double x = p.a[i * p.args.a_row + n], y = p.b[j * p.K + n];
              largest = std::max(largest, std::abs(x));
              sum += std::abs(y);
              want += x * y;
              size += std::abs(x * y) + largest / 254 * std::abs(y);
            }
            bound += largest / 254 * sum;
          }
          bound = bound * (1 + 0x1p-15) + (p.K / 32 + 5) * kEps * size;
          ASSERT_LE(std::abs(p.c[i * p.args.ldc + j] - want), bound) << i << " " << j;
        }
      }
    }
  });
}

TEST(PackedMatmul, BitsDependOnNothingButTheRow) {
  ForEachTarget([] {
    ForKinds([](BlockType type, Arithmetic arithmetic) {
      Product whole(type, arithmetic, 67, 131, 160);
      SetNumThreads(1);
      whole.Run();
      for (const int threads : {2, 3, 8}) {
        SetNumThreads(threads);
        Product team(type, arithmetic, 67, 131, 160);
        EXPECT_TRUE(SameBits(team.Run(), whole.c)) << threads << " threads";
      }
      for (const int64_t cut : {1, 2, 5, 6, 7, 30}) {
        Product parts(type, arithmetic, 67, 131, 160);
        for (int64_t from = 0; from < parts.M; from += cut) {
          MatmulArgs<> some = parts.args;
          some.M = std::min(cut, parts.M - from);
          some.a += from * some.a_row;
          some.c += from * some.ldc;
          some.residual += from * some.ldc;
          simd::Matmul(some);
        }
        EXPECT_TRUE(SameBits(parts.c, whole.c)) << "cut " << cut;
      }
    });
  });
  SetNumThreads(HardwareThreads());
}

TEST(PackedMatmul, RowsThatAreNotFiniteAndRowsOfNothing) {
  ForEachTarget([] {
    for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
      for (const int64_t M : {6, 59}) {
        Product p(type, Arithmetic::kInt8, M, 67, 96);
        const auto row = [&](int64_t i) { return p.a.begin() + i * p.args.a_row; };
        row(1)[70] = NAN;
        row(2)[3] = std::numeric_limits<float>::infinity();
        std::fill(row(3), row(3) + p.K, 0.0f);
        std::fill(row(4), row(4) + p.K, 1e-38f);
        std::fill(row(5), row(5) + p.K, 0x1p100f);
        p.args.bias = p.args.residual = nullptr;
        p.Run();
        for (int64_t j = 0; j < p.N; ++j) {
          const auto c = [&](int64_t i) { return p.c[i * p.args.ldc + j]; };
          EXPECT_TRUE(std::isfinite(c(0)));
          EXPECT_TRUE(std::isnan(c(1)));
          EXPECT_TRUE(std::isnan(c(2)));
          EXPECT_EQ(c(3), 0);
          EXPECT_EQ(c(4), 0);
          double sum = 0, size = 0;
          for (int64_t k = 0; k < p.K; ++k) {
            sum += 0x1p100 * p.b[j * p.K + k];
            size += 0x1p100 * std::abs(p.b[j * p.K + k]);
          }
          EXPECT_NEAR(c(5), sum, 8 * kEps * size);
        }
      }
    }
  });
}

}  // namespace
}  // namespace heed
