// What was reported as a fault of attention somewhere and was none: heed must not accuse it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "support/planted_attention.h"
#include "support/planted_dump.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;
using Rounding = std::function<double(double)>;

constexpr double kHidden = -std::numeric_limits<double>::infinity();
double AsFloat(double x) { return static_cast<float>(x); }
double AsBf16(double x) { return Bf16ToFloat(DoubleToBf16(x)); }
double AsF16(double x) { return F16ToFloat(DoubleToF16(x)); }

// q, k and v of an attention without projections, every result of which is rounded.
struct Heads {
  int64_t B = 2, T = 9, H = 6, Hkv = 3, D = 8;
  Rounding round = AsFloat;
  Numbers q, k, v;  // [B, H, T, D], [B, Hkv, T, D]

  Heads(uint32_t seed, Rounding how) : round(std::move(how)) {
    Draw draw(seed, DType::kF64);
    for (auto [values, heads] : {std::pair(&q, H), std::pair(&k, Hkv), std::pair(&v, Hkv)}) {
      *values = draw.Normal(B * heads * T * D);
      for (double& x : *values) x = round(x);
    }
  }

  const double* Query(int64_t map, int64_t i) const { return &q[(map * T + i) * D]; }
  // Row j of the key or value head that query head `map` of all B·H reads.
  const double* Row(const Numbers& rows, int64_t map, int64_t j) const {
    const int64_t b = map / H, h = map % H;
    return &rows[((b * Hkv + h / (H / Hkv)) * T + j) * D];
  }
  double Dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum = round(sum + a[d] * b[d]);
    return sum;
  }
  double Scale() const { return 1 / std::sqrt(double(D)); }

  TensorSet Set(Numbers y) const {
    TensorSet set;
    set["q"] = {{B, H, T, D}, q};
    set["k"] = {{B, Hkv, T, D}, k};
    set["v"] = {{B, Hkv, T, D}, v};
    set["y"] = {{B, H, T, D}, std::move(y)};
    set.settings = {
        {"n_head", std::to_string(H)}, {"n_kv_head", std::to_string(Hkv)}, {"position", "none"}};
    return set;
  }
};

// Weights of scores [T], in place.
void Softmax(const Rounding& round, double* s, int64_t n) {
  const double most = *std::max_element(s, s + n);
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum = round(sum + (s[j] = round(std::exp(s[j] - most))));
  for (int64_t j = 0; j < n; ++j) s[j] = round(s[j] / sum);
}

// y [B, H, T, D] of scores [B, H, T, T] that are masked already; the weights stay in `scores`.
Numbers Combine(const Heads& c, Numbers* scores) {
  Numbers y(c.q.size());
  for (int64_t r = 0; r < c.B * c.H * c.T; ++r) {
    double* row = &(*scores)[r * c.T];
    Softmax(c.round, row, c.T);
    for (int64_t j = 0; j < c.T; ++j) {
      const double* v = c.Row(c.v, r / c.T, j);
      for (int64_t d = 0; d < c.D; ++d) {
        y[r * c.D + d] = c.round(y[r * c.D + d] + row[j] * v[d]);
      }
    }
  }
  return y;
}

// Scores [B, H, T, T], as `score` makes one, with `hide` of each.
Numbers Scores(const Heads& c, const std::function<double(int64_t, int64_t, int64_t)>& score,
               const std::function<double(double, int64_t, int64_t)>& hide) {
  Numbers scores;
  for (int64_t map = 0; map < c.B * c.H; ++map) {
    for (int64_t i = 0; i < c.T; ++i) {
      for (int64_t j = 0; j < c.T; ++j) scores.push_back(hide(score(map, i, j), i, j));
    }
  }
  return scores;
}

double Causal(double score, int64_t i, int64_t j) { return j <= i ? score : kHidden; }

std::string FindingOf(const TensorSet& set) {
  return Finding(DiagnoseAttention(set.File(), "dump", {}));
}

const Rounding kRoundings[] = {AsFloat, AsBf16, AsF16, [](double x) { return x; }};

// llm.c PR531.
TEST(FalseAlarm, KTransposedTimesQInColumnsIsQTimesKTransposed) {
  for (const Rounding& round : kRoundings) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const Heads c(seed, round);
      // P = K^T Q, columns first: entry (j, i) lies at j + T i.
      Numbers products(c.B * c.H * c.T * c.T);
      for (int64_t map = 0; map < c.B * c.H; ++map) {
        for (int64_t i = 0; i < c.T; ++i) {
          for (int64_t j = 0; j < c.T; ++j) {
            double& p = products[map * c.T * c.T + j + c.T * i];
            p = c.round(c.Dot(c.Row(c.k, map, j), c.Query(map, i)) * c.Scale());
            if (j > i) p = kHidden;
          }
        }
      }
      const Numbers scores = products;
      TensorSet set = c.Set(Combine(c, &products));
      EXPECT_EQ(FindingOf(set), "correct") << seed;
      set["scores"] = {{c.B, c.H, c.T, c.T}, scores};
      set["pattern"] = {{c.B, c.H, c.T, c.T}, products};
      EXPECT_EQ(FindingOf(set), "correct") << seed;
    }
  }
}

// improved-diffusion#54.
TEST(FalseAlarm, AFourthRootOnEachSideIsTheScale) {
  for (const Rounding& round : kRoundings) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const Heads c(seed, round);
      Heads scaled = c;
      const double root = 1 / std::pow(double(c.D), 0.25);
      for (double& x : scaled.q) x = round(x * root);
      for (double& x : scaled.k) x = round(x * root);
      const auto score = [&](int64_t map, int64_t i, int64_t j) {
        return scaled.Dot(scaled.Query(map, i), scaled.Row(scaled.k, map, j));
      };
      Numbers scores = Scores(c, score, Causal);
      const Numbers before = scores;
      TensorSet set = c.Set(Combine(c, &scores));
      EXPECT_EQ(FindingOf(set), "correct") << seed;
      set["scores"] = {{c.B, c.H, c.T, c.T}, before};
      EXPECT_EQ(FindingOf(set), "correct") << seed;
    }
  }
}

// pytorch/tutorials#2250, nanoGPT#170: triu with diagonal 1 and -inf added, tril == 0 filled; with
// -inf, -1e9 or the type's lowest number.
TEST(FalseAlarm, EveryRightMaskIsRight) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const Heads c(seed, AsFloat);
    const auto score = [&](int64_t map, int64_t i, int64_t j) {
      return c.round(c.Dot(c.Query(map, i), c.Row(c.k, map, j)) * c.Scale());
    };
    Numbers tril(c.T * c.T), triu(c.T * c.T);
    for (int64_t i = 0; i < c.T; ++i) {
      for (int64_t j = 0; j < c.T; ++j) {
        tril[i * c.T + j] = i >= j;
        triu[i * c.T + j] = j - i >= 1;
      }
    }
    for (const double low : {kHidden, -1e9, -double(std::numeric_limits<float>::max())}) {
      const std::function<double(double, int64_t, int64_t)> masks[] = {
          [&](double s, int64_t i, int64_t j) { return triu[i * c.T + j] != 0 ? s + low : s; },
          [&](double s, int64_t i, int64_t j) { return tril[i * c.T + j] == 0 ? low : s; }};
      for (const auto& mask : masks) {
        Numbers scores = Scores(c, score, mask);
        const Numbers before = scores;
        TensorSet set = c.Set(Combine(c, &scores));
        EXPECT_EQ(FindingOf(set), "correct") << low;
        set["scores"] = {{c.B, c.H, c.T, c.T}, before};
        set["pattern"] = {{c.B, c.H, c.T, c.T}, scores};
        EXPECT_EQ(FindingOf(set), "correct") << low;
      }
    }
  }
}

// transformers#25420, #36536, llama.cpp#7859: in 16 bits, what comes through a cache differs from
// the whole, for other kernels sum in another order; both are right.
TEST(FalseAlarm, CachedAndUncachedRoundOtherwiseIn16Bits) {
  for (const Rounding& round : {Rounding(AsBf16), Rounding(AsF16)}) {
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      const Heads c(seed, round);
      const auto score = [&](int64_t map, int64_t i, int64_t j) {
        return c.round(c.Dot(c.Query(map, i), c.Row(c.k, map, j)) * c.Scale());
      };
      Numbers scores = Scores(c, score, Causal);
      const TensorSet whole = c.Set(Combine(c, &scores));
      EXPECT_EQ(FindingOf(whole), "correct") << seed;

      // The last position behind the others: products from the end, values before division.
      const int64_t P = c.T - 1;
      const auto slice = [&](const Numbers& rows, int64_t heads, int64_t first, int64_t count) {
        Numbers part;
        for (int64_t map = 0; map < c.B * heads; ++map) {
          const auto from = rows.begin() + (map * c.T + first) * c.D;
          part.insert(part.end(), from, from + count * c.D);
        }
        return Array{{c.B, heads, count, c.D}, part};
      };
      Numbers y;
      for (int64_t map = 0; map < c.B * c.H; ++map) {
        Numbers s(c.T), z(c.D);
        for (int64_t j = 0; j < c.T; ++j) {
          for (int64_t d = c.D - 1; d >= 0; --d) {
            s[j] += c.Query(map, P)[d] * c.Row(c.k, map, j)[d];
          }
          s[j] = round(round(s[j]) * c.Scale());
        }
        const double most = *std::max_element(s.begin(), s.end());
        double sum = 0;
        for (int64_t j = 0; j < c.T; ++j) {
          const double e = std::exp(s[j] - most);
          sum += e;
          for (int64_t d = 0; d < c.D; ++d) z[d] += round(e) * c.Row(c.v, map, j)[d];
        }
        for (const double x : z) y.push_back(round(x / sum));
      }
      TensorSet cached = whole;
      cached["q"] = slice(c.q, c.H, P, 1);
      cached["k"] = slice(c.k, c.Hkv, P, 1);
      cached["v"] = slice(c.v, c.Hkv, P, 1);
      cached["past_k"] = slice(c.k, c.Hkv, 0, P);
      cached["past_v"] = slice(c.v, c.Hkv, 0, P);
      cached["y"] = {{c.B, c.H, 1, c.D}, y};
      const Numbers& all = whole.tensors.at("y").values;
      const Array last = slice(all, c.H, P, 1);
      EXPECT_NE(last.values, y) << "both round alike: this proves nothing";
      EXPECT_EQ(FindingOf(cached), "correct") << seed;
    }
  }
}

// fairseq#351, pytorch#33360: where the layer ran as in training, and says so.
TEST(FalseAlarm, RowsNeedNotSumToOneWithDropout) {
  for (const auto store : {AsFloat, AsBf16}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const PlantedCase sizes{.B = 2, .T = 7, .H = 6, .Hkv = 3, .D = 8, .C = 34, .seed = seed};
      for (const std::set<std::string>& results :
           {std::set<std::string>{"y"}, std::set<std::string>{"y", "pattern"}}) {
        TensorSet set = PlantedAttention(sizes, {"dropout_live_in_eval"}, store).Dump(results);
        EXPECT_EQ(FindingOf(set), "dropout_live_in_eval");
        set.settings["dropout"] = "0.3";
        EXPECT_EQ(FindingOf(set), "correct") << seed << results.size();
        set = PlantedAttention(sizes, {"dropout_scaling_missing"}, store).Dump(results);
        set.settings["dropout"] = "0.3";
        EXPECT_EQ(FindingOf(set), "dropout_scaling_missing") << seed << results.size();
      }
    }
  }
}

// Programs in 16 bits throughout, with short rows and sharp scores: what few numbers there are lies
// near some wrong formula by chance.
TEST(FalseAlarm, ShortSharpRowsIn16BitsAreRight) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    uint64_t draw = 0;
    const auto pick = [&](std::vector<int64_t> from) {
      return from[RandomBelow({seed, 13, 0}, draw++, from.size())];
    };
    PlantedCase sizes{.B = pick({1, 2, 3}), .T = pick({2, 3, 4}), .seed = seed};
    sizes.Hkv = pick({1, 2, 3});
    sizes.H = sizes.Hkv * pick({1, 2, 3});
    sizes.D = pick({4, 8, 16});
    sizes.C = pick({24, 40, sizes.H * sizes.D});
    sizes.rope = pick({0, 1}) == 1;
    sizes.alibi = !sizes.rope && pick({0, 0, 1}) == 1;
    sizes.bias = false;
    sizes.rotary_dim = sizes.D;
    sizes.spread = double(pick({1, 4, 4}));
    if (pick({0, 0, 1}) == 1) sizes.norm = PlantedCase::Norm::kBefore;
    for (int64_t b = 0; b < sizes.B && pick({0, 1}) == 1; ++b) sizes.pads.push_back(pick({0, 1}));
    if (int64_t(sizes.pads.size()) < sizes.B) sizes.pads.clear();
    const bool bf16 = pick({0, 1}) == 1;
    sizes.round = bf16 ? AsBf16 : AsF16;
    const TensorSet set = PlantedAttention(sizes, {}, sizes.round).Dump();
    ASSERT_EQ(FindingOf(set), "correct") << seed;
  }
}

// A gain behind the rotation shows that tokens are counted from 1, wherever the padding ends.
TEST(FalseAlarm, PositionsFromOneBehindPaddingAreRight) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    PlantedCase sizes{.B = 2, .T = 5 + int64_t(seed % 7), .D = 8, .C = 12, .seed = seed};
    sizes.interleaved = seed % 2 == 1;
    sizes.norm = PlantedCase::Norm::kAfter;
    sizes.counts_tokens = true;
    sizes.first = sizes.padding_stands_at = 1;
    sizes.pads = {int64_t(seed % 4), int64_t(seed % 3)};
    TensorSet set = PlantedAttention(sizes, {}, AsFloat).Dump();
    set.settings.erase("rope_first_position");
    EXPECT_EQ(FindingOf(set), "correct") << seed;
  }
}

// Rows of padding are 0 in what is compared, and do not say that y lacks x.
TEST(FalseAlarm, TheBlocksSumUnderPaddingIsRight) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    PlantedCase sizes{
        .B = 2, .T = 6 + int64_t(seed % 5), .C = 20, .rope = seed % 2 == 1, .seed = seed};
    // Most of it padding, on either side.
    sizes.pads = {sizes.T - 2, (seed % 3 == 0 ? -1 : 1) * (sizes.T - 1)};
    TensorSet set = PlantedAttention(sizes, {}, AsFloat).Dump();
    for (size_t i = 0; i < set["y"].values.size(); ++i) {
      set["y"].values[i] = AsFloat(set["y"].values[i] + set["x"].values[i]);
    }
    EXPECT_EQ(FindingOf(set), "correct") << seed;
  }
}

// nanochat#743.
TEST(FalseAlarm, ANormWithoutGainCommutesWithRope) {
  for (const Rounding& round : kRoundings) {
    for (const bool interleaved : {false, true}) {
      Heads c(7, round);
      const auto norm = [&](Numbers* rows) {
        for (size_t r = 0; r < rows->size(); r += c.D) {
          double squares = 0;
          for (int64_t d = 0; d < c.D; ++d) squares += (*rows)[r + d] * (*rows)[r + d];
          for (int64_t d = 0; d < c.D; ++d) {
            (*rows)[r + d] = round((*rows)[r + d] / std::sqrt(squares / double(c.D) + 1e-6));
          }
        }
      };
      const auto turn = [&](Numbers* rows) {
        for (size_t r = 0; r < rows->size() / c.D; ++r) {
          for (int64_t p = 0; p < c.D / 2; ++p) {
            const double angle =
                double(int64_t(r) % c.T) * std::pow(10000.0, -2.0 * double(p) / double(c.D));
            double& a = (*rows)[r * c.D + (interleaved ? 2 * p : p)];
            double& b = (*rows)[r * c.D + (interleaved ? 2 * p + 1 : p + c.D / 2)];
            const double x = a, y = b;
            a = round(x * std::cos(angle) - y * std::sin(angle));
            b = round(x * std::sin(angle) + y * std::cos(angle));
          }
        }
      };
      // Theirs turns first and norms then; what is handed over is normed and not turned.
      Heads theirs = c;
      for (Numbers* rows : {&theirs.q, &theirs.k}) {
        turn(rows);
        norm(rows);
      }
      norm(&c.q);
      norm(&c.k);
      const auto score = [&](int64_t map, int64_t i, int64_t j) {
        return round(theirs.Dot(theirs.Query(map, i), theirs.Row(theirs.k, map, j)) * c.Scale());
      };
      Numbers scores = Scores(c, score, Causal);
      TensorSet set = c.Set(Combine(c, &scores));
      set.settings["position"] = "rope";
      set.settings["rope_pairing"] = interleaved ? "interleaved" : "half";
      EXPECT_EQ(FindingOf(set), "correct");
    }
  }
}

// Sharp scores computed in 16 bits leave more than their floor says, and a wrong formula a little
// less by chance. In float32 the same distances tell.
TEST(FalseAlarm, ANameALittleNearerProvesNothingIn16Bits) {
  const auto verdict = [](DType dtype, double right, double wrong) {
    NoiseFloor floor = NoiseFloorOf(dtype, dtype);
    floor.arithmetic = 1;
    return Conclude({{{}, right, ""}, {{"scale_value"}, wrong, ""}}, floor).verdict;
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EXPECT_EQ(verdict(dtype, 1.5, 0.9), DiagnosisVerdict::kCorrect);
    EXPECT_EQ(verdict(dtype, 2.2, 0.9), DiagnosisVerdict::kUnexplained);
    EXPECT_EQ(verdict(dtype, 2.7, 0.9), DiagnosisVerdict::kFault);
  }
  EXPECT_EQ(verdict(DType::kF32, 1.5, 0.9), DiagnosisVerdict::kFault);
}

// A window one key short. Rows look at themselves, one or two keys back, and those of `looking` at
// the lost key: key j is the j-th unit vector, so that q holds the scores. Where it is one row, two
// scores that changed places give the same numbers.
TensorSet ShortWindow(int64_t T, const std::set<int64_t>& looking, const Rounding& store) {
  constexpr int64_t kWindow = 4, kLost = kWindow - 1;
  constexpr double kFirst = 1000, kSecond = 992;  // two units of bfloat16 apart
  Heads c(1, store);
  c.B = c.H = c.Hkv = 1;
  c.T = T;
  c.D = 64;
  c.q.assign(T * c.D, 0);
  c.k.assign(T * c.D, 0);
  c.v = Draw(2, DType::kF64).Normal(T * c.D);
  for (double& x : c.v) x = store(x);
  Numbers y;
  for (int64_t i = 0; i < T; ++i) {
    const int64_t seen = i - std::min(i, i % kLost);
    c.q[i * c.D + seen] = looking.contains(i) ? kSecond : kFirst;
    if (looking.contains(i)) c.q[i * c.D + i - kLost] = kFirst;
    c.k[i * c.D + i] = 8;
    y.insert(y.end(), c.v.begin() + seen * c.D, c.v.begin() + (seen + 1) * c.D);
  }
  TensorSet set = c.Set(std::move(y));
  set.settings["window"] = std::to_string(kWindow);
  return set;
}

// One of many rows proves no name in 16 bits; in float32, or of few rows, or twice, it does.
TEST(FalseAlarm, OneOfManyRowsProvesNothingIn16Bits) {
  for (const Rounding& coarse : {Rounding(AsBf16), Rounding(AsF16)}) {
    const auto diagnosis = DiagnoseAttention(ShortWindow(32, {20}, coarse).File(), "dump", {});
    EXPECT_EQ(Finding(diagnosis), "unexplained");
    EXPECT_THAT(diagnosis->seen, testing::Contains(testing::HasSubstr("one row alone departs")));
    EXPECT_EQ(FindingOf(ShortWindow(32, {10, 20}, coarse)), "window_off_by_one");
    EXPECT_EQ(FindingOf(ShortWindow(31, {20}, coarse)), "window_off_by_one");
  }
  EXPECT_EQ(FindingOf(ShortWindow(32, {20}, AsFloat)), "window_off_by_one");
}

// Another call of the same layer: no dropout of all weights fits a result three times as large.
TEST(DiagnoseAttention, AnotherResultThatIsWrongIsSaid) {
  for (const char* name : {"y_first", "y_eval"}) {
    const PlantedCase sizes{.B = 2, .T = 9, .H = 1, .Hkv = 1, .D = 8, .C = 10, .seed = 7};
    TensorSet set = PlantedAttention(sizes, {}, StoredAsFloat).Dump();
    set[name] = set["y"];
    const auto same = DiagnoseAttention(set.File(), "dump", {});
    ASSERT_TRUE(same);
    EXPECT_EQ(same->verdict, DiagnosisVerdict::kCorrect);
    for (double& value : set[name].values) value *= 3;
    const auto other = DiagnoseAttention(set.File(), "dump", {});
    ASSERT_TRUE(other);
    EXPECT_EQ(other->verdict, DiagnosisVerdict::kUnexplained) << name;
    const std::string said = "y is right: the fault is in " + std::string(name) + " alone";
    EXPECT_THAT(other->seen, testing::Contains(said)) << name;
  }
}

}  // namespace
}  // namespace heed
