// Attention on given numbers against float64, and everything that a file may have wrong.
#include "inspect/attention_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/compare.h"
#include "support/tensor_set.h"

namespace heed {
namespace {

using testing::HasSubstr;

constexpr double kForward = 1e-12;   // of the tensor's largest number
constexpr double kGradient = 1e-11;  // likewise

std::string GoldenPath(const std::string& name) { return HEED_GOLDEN_DIR "/" + name; }

TensorSet GoldenSet(const std::string& name) {
  return TensorSet::Of(*TensorFile::Open(GoldenPath(name + ".safetensors")));
}

using Trace = std::map<std::string, Array>;

Trace Traced(const AttentionCase& attention) {
  Trace trace;
  for (TracedTensor& tensor : TraceAttention(attention)) {
    EXPECT_FALSE(trace.contains(tensor.name)) << tensor.name;
    trace[tensor.name] = {tensor.shape, std::move(tensor.values)};
  }
  return trace;
}

Trace Traced(const TensorSet& set, const SettingTexts& given = {}) {
  const auto attention = ReadAttentionCase(set.File(), "set", given);
  if (!attention) throw std::runtime_error(attention.error().Message());
  return Traced(*attention);
}

std::string ErrorOf(const TensorSet& set, const SettingTexts& given = {}) {
  const auto attention = ReadAttentionCase(set.File(), "set", given);
  return attention ? "no error" : attention.error().Message();
}

void ExpectSame(const Array& got, const Array& want, double bound) {
  EXPECT_EQ(got.shape, want.shape);
  EXPECT_LT(RelativeError(got.values, want.values), bound);
}

double Largest(const Array& array) {
  double largest = 0;
  for (const double x : array.values) largest = std::max(largest, std::abs(x));
  return largest;
}

Array Transposed(const Array& matrix) {
  Array out{{matrix.shape[1], matrix.shape[0]}, {}};
  for (int64_t j = 0; j < matrix.shape[1]; ++j) {
    for (int64_t i = 0; i < matrix.shape[0]; ++i) {
      out.values.push_back(matrix.values[i * matrix.shape[1] + j]);
    }
  }
  return out;
}

// Rows of matrices of one width (or numbers of vectors), one after the other.
Array Stacked(const std::vector<Array>& parts) {
  Array out = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    out.shape[0] += parts[i].shape[0];
    out.values.insert(out.values.end(), parts[i].values.begin(), parts[i].values.end());
  }
  return out;
}

// Rows first .. last - 1 of a matrix or vector.
Array Rows(const Array& array, int64_t first, int64_t last) {
  const auto width = static_cast<int64_t>(array.values.size()) / array.shape[0];
  Array out = array;
  out.shape[0] = last - first;
  out.values.assign(array.values.begin() + first * width, array.values.begin() + last * width);
  return out;
}

// [.., T, D] -> [.., last - first, D].
Array Positions(const Array& array, int64_t first, int64_t last) {
  const int64_t D = array.shape.back(), T = array.shape[array.shape.size() - 2];
  Array out{array.shape, {}};
  out.shape[out.shape.size() - 2] = last - first;
  for (size_t row = 0; row < array.values.size(); row += T * D) {
    const auto begin = array.values.begin() + static_cast<std::ptrdiff_t>(row);
    out.values.insert(out.values.end(), begin + first * D, begin + last * D);
  }
  return out;
}

// [.., A, D] and [.., B, D] -> [.., A + B, D].
Array JoinPositions(const Array& a, const Array& b) {
  const int64_t D = a.shape.back(), A = a.shape[a.shape.size() - 2] * D;
  const int64_t B = b.shape[b.shape.size() - 2] * D;
  Array out{a.shape, {}};
  out.shape[out.shape.size() - 2] = (A + B) / D;
  for (int64_t row = 0; row * A < static_cast<int64_t>(a.values.size()); ++row) {
    out.values.insert(out.values.end(), a.values.begin() + row * A,
                      a.values.begin() + (row + 1) * A);
    out.values.insert(out.values.end(), b.values.begin() + row * B,
                      b.values.begin() + (row + 1) * B);
  }
  return out;
}

std::vector<std::string> GoldenNames(const std::string& beginning) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(HEED_GOLDEN_DIR)) {
    const std::string name = file.path().stem().string();
    if (name.starts_with(beginning) && file.path().extension() == ".safetensors") {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

class AttentionGolden : public testing::TestWithParam<std::string> {};

TEST_P(AttentionGolden, EveryIntermediate) {
  TensorSet golden = GoldenSet(GetParam());
  Trace trace = Traced(golden);
  int compared = 0;
  for (const auto& [name, want] : golden.tensors) {
    if (!name.starts_with("expect.")) continue;
    SCOPED_TRACE(name);
    ExpectSame(trace[name.substr(7)], want, kForward);
    ++compared;
  }
  EXPECT_EQ(compared, 9);
}

TEST_P(AttentionGolden, EveryGradient) {
  TensorSet golden = GoldenSet(GetParam());
  Trace trace = Traced(golden);
  int compared = 0;
  for (const auto& [name, want] : golden.tensors) {
    if (!name.starts_with("grad.")) continue;
    SCOPED_TRACE(name);
    ++compared;
    if (name == "grad.k_proj.bias" && golden.settings["position"] == "none") {
      // A constant on every key shifts whole rows of scores, which softmax does not see: the
      // gradient is 0 and both sides hold rounding alone.
      EXPECT_LT(Largest(trace[name]), kGradient * Largest(golden["grad.q_proj.bias"]));
      continue;
    }
    ExpectSame(trace[name], want, kGradient);
  }
  EXPECT_GE(compared, 5);
}

// The scores by their definition from the golden's own rotated heads, and the mask by its own.
TEST_P(AttentionGolden, ScoresAreScaledAndHidden) {
  TensorSet golden = GoldenSet(GetParam());
  Trace trace = Traced(golden);
  const Array &q = golden["expect.q_rot"], &k = golden["expect.k_rot"];
  const int64_t B = q.shape[0], H = q.shape[1], T = q.shape[2], D = q.shape[3], Hkv = k.shape[1];
  const Array &scores = trace["scores"], &pattern = trace["pattern"];
  ASSERT_EQ(scores.shape, (std::vector<int64_t>{B, H, T, T}));
  double worst = 0;
  for (int64_t at = 0; at < B * H * T * T; ++at) {
    const int64_t s = at % T, t = at / T % T, h = at / T / T % H, b = at / T / T / H;
    if (s > t) {
      ASSERT_EQ(scores.values[at], -std::numeric_limits<double>::infinity());
      ASSERT_EQ(pattern.values[at], 0);
      continue;
    }
    double dot = 0;
    for (int64_t d = 0; d < D; ++d) {
      dot += q.values[((b * H + h) * T + t) * D + d] *
             k.values[((b * Hkv + h * Hkv / H) * T + s) * D + d];
    }
    worst = std::max(worst, std::abs(scores.values[at] - dot / std::sqrt(D)));
  }
  EXPECT_LT(worst, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Files, AttentionGolden, testing::ValuesIn(GoldenNames("attention-")),
                         TestName);

class CacheGolden : public testing::TestWithParam<std::string> {};

// Each chunk is given what the chunks before it wrote.
TEST_P(CacheGolden, ChunksAreTheWhole) {
  TensorSet golden = GoldenSet(GetParam());
  const auto pieces = nlohmann::json::parse(golden.settings["pieces"]).get<std::vector<int64_t>>();
  Array y, past_k, past_v;
  int64_t at = 0;
  for (const int64_t piece : pieces) {
    TensorSet chunk = golden;
    chunk["x"] = Positions(golden["x"], at, at + piece);
    if (at > 0) {
      chunk["past_k"] = past_k;
      chunk["past_v"] = past_v;
    }
    Trace trace = Traced(chunk);
    y = at == 0 ? trace["y"] : JoinPositions(y, trace["y"]);
    past_k = at == 0 ? trace["k_rot"] : JoinPositions(past_k, trace["k_rot"]);
    past_v = at == 0 ? trace["v"] : JoinPositions(past_v, trace["v"]);
    at += piece;
  }
  ExpectSame(y, golden["expect.y"], kForward);
  ExpectSame(past_k, golden["expect.k_cache"], kForward);
  ExpectSame(past_v, golden["expect.v_cache"], kForward);
}

INSTANTIATE_TEST_SUITE_P(Files, CacheGolden, testing::ValuesIn(GoldenNames("cache-")), TestName);

TEST(AttentionFile, ReadsNpz) {
  const auto file = TensorFile::Open(GoldenPath("attention-gqa-rope-interleaved.npz"));
  ASSERT_TRUE(file) << file.error().Message();
  const auto attention = ReadAttentionCase(*file, "npz");
  ASSERT_TRUE(attention) << attention.error().Message();
  TensorSet golden = GoldenSet("attention-gqa-rope-interleaved");
  Trace trace = Traced(*attention);
  ExpectSame(trace["q_rot"], golden["expect.q_rot"], kForward);
  ExpectSame(trace["y"], golden["expect.y"], kForward);
  EXPECT_EQ(attention->dtype, DType::kF32);
  EXPECT_FALSE(trace.contains("grad.x"));
}

// Moves q_proj, k_proj and v_proj into c_attn, in Linear's layout.
TensorSet Fused(TensorSet set) {
  for (const char* end : {".weight", ".bias"}) {
    if (!set.tensors.contains(std::string("q_proj") + end)) continue;
    set[std::string("c_attn") + end] =
        Stacked({set[std::string("q_proj") + end], set[std::string("k_proj") + end],
                 set[std::string("v_proj") + end]});
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      set.tensors.erase(std::string(name) + end);
    }
  }
  return set;
}

class FusedGolden : public testing::TestWithParam<std::string> {
 protected:
  // The gradients of a fused file are those of the split one, laid out like the file.
  void ExpectGradients(Trace& trace, bool transposed) {
    for (const char* end : {".weight", ".bias"}) {
      const std::string grad = "grad.", tail = end;
      if (!golden_.tensors.contains(grad + "q_proj" + tail)) continue;
      Array want = Stacked({golden_[grad + "q_proj" + tail], golden_[grad + "k_proj" + tail],
                            golden_[grad + "v_proj" + tail]});
      Array out = golden_[grad + "o_proj" + tail];
      if (transposed && tail == ".weight") {
        want = Transposed(want);
        out = Transposed(out);
      }
      ExpectSame(trace[grad + "c_attn" + tail], want, kGradient);
      ExpectSame(trace[grad + "c_proj" + tail], out, kGradient);
    }
    ExpectSame(trace["grad.x"], golden_["grad.x"], kGradient);
  }

  TensorSet golden_ = GoldenSet(GetParam());
};

TEST_P(FusedGolden, LinearLayout) {
  TensorSet set = Fused(golden_);
  set.Rename("o_proj.weight", "c_proj.weight");
  if (set.tensors.contains("o_proj.bias")) set.Rename("o_proj.bias", "c_proj.bias");
  Trace trace = Traced(set);
  ExpectSame(trace["y"], golden_["expect.y"], kForward);
  ExpectGradients(trace, false);
}

TEST_P(FusedGolden, Conv1dLayout) {
  TensorSet set = Fused(golden_);
  set.Rename("o_proj.weight", "c_proj.weight");
  if (set.tensors.contains("o_proj.bias")) set.Rename("o_proj.bias", "c_proj.bias");
  set["c_attn.weight"] = Transposed(set["c_attn.weight"]);
  set["c_proj.weight"] = Transposed(set["c_proj.weight"]);
  Trace trace = Traced(set);
  ExpectSame(trace["y"], golden_["expect.y"], kForward);
  ExpectGradients(trace, true);
}

INSTANTIATE_TEST_SUITE_P(Files, FusedGolden,
                         testing::Values("attention-mha-bias", "attention-gqa-rope-half",
                                         "attention-mqa-rope-wide-heads"),
                         TestName);

TEST(AttentionFile, FusedRowsHeadByHead) {
  TensorSet golden = GoldenSet("attention-gqa-rope-interleaved");  // 6 query heads, 3 pairs, D 4
  TensorSet set = Fused(golden);
  const auto per_head = [&](const std::string& prefix) {
    std::vector<Array> parts;
    for (int64_t h = 0; h < 3; ++h) {
      parts.push_back(Rows(golden[prefix + "q_proj.weight"], h * 8, h * 8 + 8));
      parts.push_back(Rows(golden[prefix + "k_proj.weight"], h * 4, h * 4 + 4));
      parts.push_back(Rows(golden[prefix + "v_proj.weight"], h * 4, h * 4 + 4));
    }
    return Stacked(parts);
  };
  set["c_attn.weight"] = per_head("");
  Trace trace = Traced(set, {{"qkv_layout", "per_head"}});
  ExpectSame(trace["y"], golden["expect.y"], kForward);
  ExpectSame(trace["grad.c_attn.weight"], per_head("grad."), kGradient);
  EXPECT_GT(RelativeError(Traced(set)["y"].values, golden["expect.y"].values), 0.1);
}

// c_attn [C, (H + 2 Hkv) D] is square when heads are narrow: c_proj tells its layout.
TEST(AttentionFile, SquareFusedWeight) {
  TensorSet set;
  set["x"] = {{1, 3, 8}, RandomArray<double>(24, 1)};
  set["c_attn.weight"] = {{8, 8}, RandomArray<double>(64, 2)};
  set["c_proj.weight"] = {{8, 4}, RandomArray<double>(32, 3)};
  set.settings = {{"n_head", "2"}};  // D 2, one key/value head
  const Array linear = Traced(set)["y"];
  set["c_attn.weight"] = Transposed(set["c_attn.weight"]);
  set["c_proj.weight"] = Transposed(set["c_proj.weight"]);
  ExpectSame(Traced(set)["y"], linear, 1e-15);
}

TEST(AttentionFile, NamesMayHaveAPrefix) {
  TensorSet golden = GoldenSet("attention-mha-bias");
  TensorSet set = golden;
  for (const auto& [name, array] : golden.tensors) {
    if (!name.starts_with("expect.") && name.find("_proj") != std::string::npos) {
      // Gradients too, which must not be taken for weights.
      const size_t at = name.starts_with("grad.") ? 5 : 0;
      set.Rename(name, name.substr(0, at) + "model.layers.0.self_attn." + name.substr(at));
    }
  }
  Trace trace = Traced(set);
  ExpectSame(trace["y"], golden["expect.y"], kForward);
  ExpectSame(trace["grad.model.layers.0.self_attn.v_proj.bias"], golden["grad.v_proj.bias"],
             kGradient);

  set["model.layers.1.self_attn.q_proj.weight"] = golden["q_proj.weight"];
  EXPECT_THAT(ErrorOf(set), HasSubstr("one tensor whose name ends in q_proj.weight"));
}

// A whole GPT-2 block has another c_proj in its MLP.
TEST(AttentionFile, ProjectionOfTheSamePrefix) {
  TensorSet golden = GoldenSet("attention-mha");
  TensorSet set = Fused(golden);
  set.Rename("c_attn.weight", "h.0.attn.c_attn.weight");
  set.Rename("o_proj.weight", "h.0.attn.c_proj.weight");
  set["h.0.mlp.c_proj.weight"] = {{16, 64}, RandomArray<double>(16 * 64, 1)};
  ExpectSame(Traced(set)["y"], golden["expect.y"], kForward);
}

TEST(AttentionFile, OutProjIsOProj) {
  TensorSet golden = GoldenSet("attention-mha");
  TensorSet set = golden;
  set.Rename("o_proj.weight", "out_proj.weight");
  Trace trace = Traced(set);
  ExpectSame(trace["y"], golden["expect.y"], kForward);
  ExpectSame(trace["grad.out_proj.weight"], golden["grad.o_proj.weight"], kGradient);
}

// q, k and v of a golden, unrotated, with its settings.
TensorSet HeadsOf(TensorSet golden) {
  TensorSet set;
  set["q"] = golden["expect.q"];
  set["k"] = golden["expect.k"];
  set["v"] = golden["expect.v"];
  set.settings = golden.settings;
  return set;
}

TEST(AttentionFile, HeadsGivenDirectly) {
  for (const std::string& name : GoldenNames("attention-")) {
    SCOPED_TRACE(name);
    TensorSet golden = GoldenSet(name);
    TensorSet set = HeadsOf(golden);
    Trace trace = Traced(set);
    ExpectSame(trace["merged"], golden["expect.merged"], kForward);
    EXPECT_FALSE(trace.contains("y"));
    set["o_proj.weight"] = golden["o_proj.weight"];
    if (golden.tensors.contains("o_proj.bias")) set["o_proj.bias"] = golden["o_proj.bias"];
    set["dy"] = golden["dy"];
    trace = Traced(set);
    ExpectSame(trace["y"], golden["expect.y"], kForward);
    ExpectSame(trace["grad.o_proj.weight"], golden["grad.o_proj.weight"], kGradient);

    // dW = sum over positions of dq xᵀ: the golden's weight gradients prove the heads'.
    for (const std::string head : {"q", "k", "v"}) {
      const Array& dy = trace["grad." + head];
      const Array &x = golden["x"], &want = golden["grad." + head + "_proj.weight"];
      const int64_t B = dy.shape[0], N = dy.shape[1], T = dy.shape[2], D = dy.shape[3];
      const int64_t C = x.shape[2];
      Array got{{N * D, C}, std::vector<double>(N * D * C)};
      for (int64_t at = 0; at < B * N * T * D; ++at) {
        const int64_t d = at % D, t = at / D % T, n = at / D / T % N, b = at / D / T / N;
        for (int64_t c = 0; c < C; ++c) {
          got.values[(n * D + d) * C + c] += dy.values[at] * x.values[(b * T + t) * C + c];
        }
      }
      ExpectSame(got, want, kGradient);
    }
  }
}

// Without a projection dy belongs to merged; a projection by the identity changes nothing.
TEST(AttentionFile, GradientOfMerged) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");
  TensorSet set = HeadsOf(golden);
  set["dy"] = golden["dy"];
  Trace plain = Traced(set);
  Array identity{{24, 24}, std::vector<double>(24 * 24)};
  for (int64_t i = 0; i < 24; ++i) identity.values[i * 25] = 1;
  set["o_proj.weight"] = identity;
  Trace projected = Traced(set);
  for (const char* name : {"grad.q", "grad.k", "grad.v"}) {
    ExpectSame(plain[name], projected[name], 1e-15);
    EXPECT_GT(Largest(plain[name]), 0.1);
  }
}

// Gradients with a past are the whole's, when dy is 0 before the chunk.
TEST(AttentionFile, GradientsOfThePast) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");  // T 9
  const int64_t P = 4, T = 9;
  TensorSet whole;
  whole["q"] = golden["expect.q_rot"];
  whole["k"] = golden["expect.k_rot"];
  whole["v"] = golden["expect.v"];
  whole["dy"] = golden["dy"];
  for (int64_t b = 0; b < 2; ++b) {
    std::fill_n(whole["dy"].values.begin() + b * T * 24, P * 24, 0.0);
  }
  TensorSet chunk;
  for (const char* name : {"q", "k", "v", "dy"}) chunk[name] = Positions(whole[name], P, T);
  chunk["past_k"] = Positions(whole["k"], 0, P);
  chunk["past_v"] = Positions(whole["v"], 0, P);
  Trace want = Traced(whole), got = Traced(chunk);
  ExpectSame(got["grad.q"], Positions(want["grad.q"], P, T), kGradient);
  ExpectSame(got["grad.k"], Positions(want["grad.k"], P, T), kGradient);
  ExpectSame(got["grad.v"], Positions(want["grad.v"], P, T), kGradient);
  ExpectSame(got["grad.past_k"], Positions(want["grad.k"], 0, P), kGradient);
  ExpectSame(got["grad.past_v"], Positions(want["grad.v"], 0, P), kGradient);
  EXPECT_GT(Largest(got["grad.past_k"]), 0.01);
  EXPECT_EQ(got["scores"].shape, (std::vector<int64_t>{2, 6, T - P, T}));
}

TEST(AttentionFile, EmptyPastIsNone) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");
  golden["past_k"] = {{2, 2, 0, 4}, {}};
  golden["past_v"] = {{2, 2, 0, 4}, {}};
  Trace trace = Traced(golden);
  ExpectSame(trace["y"], golden["expect.y"], kForward);
  EXPECT_FALSE(trace.contains("grad.past_k"));
}

// Su et al. 2021, equation 13, by hand: one radian turns (1, 0.8).
TEST(AttentionFile, FirstPositionIsTheAngle) {
  TensorSet set;
  set["q"] = set["k"] = set["v"] = {{1, 1, 1, 2}, {1.0, 0.8}};
  set.settings = {{"position", "rope"}, {"rope_first_position", "1"}};
  const Array q = Traced(set)["q_rot"];
  EXPECT_NEAR(q.values[0], std::cos(1.0) - 0.8 * std::sin(1.0), 1e-15);
  EXPECT_NEAR(q.values[1], std::sin(1.0) + 0.8 * std::cos(1.0), 1e-15);
  EXPECT_NEAR(q.values[0], -0.1329, 5e-5);
}

// Scores depend on differences of positions alone.
TEST(AttentionFile, FirstPositionLeavesTheOutput) {
  for (const char* name : {"attention-gqa-rope-half", "attention-gqa-rope-interleaved"}) {
    TensorSet golden = GoldenSet(name);
    Trace shifted = Traced(golden, {{"rope_first_position", "17"}});
    ExpectSame(shifted["y"], golden["expect.y"], 1e-11);
    ExpectSame(shifted["grad.x"], golden["grad.x"], 1e-10);
    EXPECT_GT(RelativeError(shifted["q_rot"].values, golden["expect.q_rot"].values), 0.1);
  }
}

// Rotating 2 of 4 channels is rotating heads of width 2 and leaving the rest.
TEST(AttentionFile, PartialRotation) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");
  TensorSet set = HeadsOf(golden);
  const Array partial = Traced(set, {{"rotary_dim", "2"}})["q_rot"];
  const Array whole = set["q"];
  for (size_t row = 0; row < whole.values.size(); row += 4) {
    const auto t = static_cast<double>(row / 4 % 9);
    const double a = whole.values[row], b = whole.values[row + 1];
    ASSERT_NEAR(partial.values[row], a * std::cos(t) - b * std::sin(t), 1e-13);
    ASSERT_NEAR(partial.values[row + 1], a * std::sin(t) + b * std::cos(t), 1e-13);
    ASSERT_EQ(partial.values[row + 2], whole.values[row + 2]);
    ASSERT_EQ(partial.values[row + 3], whole.values[row + 3]);
  }
}

// A window of w keys, itself included, gives each query what a cache of w - 1 positions would.
TEST(AttentionFile, WindowIsAShortCache) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");
  TensorSet set = HeadsOf(golden);
  set.settings["window"] = "3";
  Trace trace = Traced(set);
  EXPECT_EQ(trace["pattern"].values[5 * 9 + 2], 0);
  EXPECT_GT(trace["pattern"].values[5 * 9 + 3], 0);
  TensorSet one = HeadsOf(golden);
  one.settings["rope_first_position"] = "3";  // with two positions before it, the query is 5
  for (const char* name : {"q", "k", "v"}) one[name] = Positions(one[name], 5, 6);
  one["past_k"] = Positions(golden["expect.k_rot"], 3, 5);
  one["past_v"] = Positions(golden["expect.v"], 3, 5);
  ExpectSame(Traced(one)["merged"], Positions(trace["merged"], 5, 6), kForward);
}

TEST(AttentionFile, SizesFromShapes) {
  TensorSet golden = GoldenSet("attention-mqa-rope-wide-heads");  // 4 heads, 1 pair, D 8
  for (const char* known : {"n_head", "n_kv_head", "head_dim"}) {
    TensorSet set = golden;
    for (const char* name : {"n_head", "n_kv_head", "head_dim"}) {
      if (std::string_view(name) != known) set.settings.erase(name);
    }
    ExpectSame(Traced(set)["y"], golden["expect.y"], kForward);
  }
  for (const char* name : {"n_head", "n_kv_head", "head_dim"}) golden.settings.erase(name);
  EXPECT_THAT(ErrorOf(golden), HasSubstr("set: n_head: found none stated"));
  // A cache tells the width of its heads.
  golden["past_k"] = golden["past_v"] = {{1, 1, 2, 8}, RandomArray<double>(16, 1)};
  EXPECT_EQ(Traced(golden)["scores"].shape, (std::vector<int64_t>{1, 4, 33, 35}));
}

TEST(AttentionFile, GivenSettingsWin) {
  TensorSet golden = GoldenSet("attention-gqa-rope-half");
  TensorSet wrong = golden;
  wrong.settings["rope_theta"] = "500000.0";
  wrong.settings["n_kv_head"] = "null";
  EXPECT_GT(RelativeError(Traced(wrong)["y"].values, golden["expect.y"].values), 1e-3);
  ExpectSame(Traced(wrong, {{"rope_theta", "10000"}})["y"], golden["expect.y"], kForward);
}

// Learned and sinusoidal positions are in x already.
TEST(AttentionFile, OtherPositionsRotateNothing) {
  TensorSet golden = GoldenSet("attention-mha");
  for (const char* position : {"learned", "sinusoidal"}) {
    ExpectSame(Traced(golden, {{"position", position}})["y"], golden["expect.y"], kForward);
  }
}

TEST(AttentionFile, WritesWhatItReads) {
  const TemporaryFolder folder;
  const auto file = TensorFile::Open(GoldenPath("attention-gqa-rope-half.safetensors"));
  auto attention = ReadAttentionCase(*file, "golden", {{"window", "4"}});
  ASSERT_TRUE(attention);
  const std::vector<TracedTensor> traced = TraceAttention(*attention);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::string path = folder / std::string(NameOf(dtype));
    attention->dtype = dtype;
    ASSERT_TRUE(WriteTrace(path, *attention, traced, false));
    EXPECT_FALSE(WriteTrace(path, *attention, traced, false));  // it exists
    const auto written = SafetensorsFile::Open(path);
    ASSERT_TRUE(written);
    EXPECT_EQ(written->metadata().at("window"), "4");
    EXPECT_EQ(written->metadata().at("rotary_dim"), "4");
    EXPECT_EQ(written->metadata().at("position"), "rope");
    ASSERT_EQ(written->tensors().size(), traced.size());
    for (const TracedTensor& tensor : traced) {
      EXPECT_EQ(written->Find(tensor.name)->dtype, dtype);
      std::vector<double> want = tensor.values;
      if (dtype == DType::kF32) want = Cast<double>(Cast<float>(want));
      EXPECT_EQ(*written->Doubles(tensor.name), want) << tensor.name;
    }
  }
  // What was written is a file of q, k and v.
  const auto again = ReadAttentionCase(*TensorFile::Open(folder / "F64"), "again");
  ASSERT_TRUE(again) << again.error().Message();
  EXPECT_EQ(again->dtype, DType::kF64);
  Trace trace = Traced(*again);
  for (const TracedTensor& tensor : traced) {
    if (tensor.name == "merged") ExpectSame(trace["merged"], {tensor.shape, tensor.values}, 1e-15);
  }
}

struct Broken {
  const char* what;
  void (*change)(TensorSet&);
  const char* error;
};

void Set(TensorSet& set, const char* name, std::vector<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  set[name] = {std::move(shape), RandomArray<double>(elements, 5)};
}

// On 6 query heads, 2 key/value heads, D 4, C 24, B 2, T 9.
const Broken kBroken[] = {
    {"no x", [](TensorSet& s) { s.tensors.erase("x"); }, "no tensor \"x\""},
    {"nothing", [](TensorSet& s) { s.tensors.clear(); }, "no tensor \"x\""},
    {"mistyped", [](TensorSet& s) { s.Rename("q_proj.weight", "q_porj.weight"); },
     "no tensor \"q_proj.weight\", expected [n_head*head_dim, C]; the nearest name is "
     "\"q_porj.weight\""},
    {"no keys", [](TensorSet& s) { s.tensors.erase("k_proj.weight"); },
     "no tensor \"k_proj.weight\""},
    {"no values", [](TensorSet& s) { s.tensors.erase("v_proj.weight"); },
     "no tensor \"v_proj.weight\""},
    {"no output", [](TensorSet& s) { s.tensors.erase("o_proj.weight"); },
     "no tensor \"o_proj.weight\""},
    {"rank of x",
     [](TensorSet& s) {
       Set(s, "x", {18, 24});
     },
     "tensor \"x\": found [18, 24], expected [B, T, C], every size at least 1"},
    {"no positions",
     [](TensorSet& s) {
       Set(s, "x", {2, 0, 24});
     },
     "found [2, 0, 24]"},
    {"absurd emptiness",
     [](TensorSet& s) {
       Set(s, "x", {0, int64_t{1} << 60, 4});
     },
     "every size at least 1"},
    {"width of x",
     [](TensorSet& s) {
       Set(s, "x", {2, 9, 20});
     },
     "tensor \"q_proj.weight\": found [24, 24], expected [n_head*head_dim, C] = [24, 20]"},
    {"rank of a weight",
     [](TensorSet& s) {
       Set(s, "q_proj.weight", {24, 24, 1});
     },
     "expected [n_head*head_dim, C]"},
    {"transposed weight", [](TensorSet& s) { s["k_proj.weight"] = Transposed(s["k_proj.weight"]); },
     "n_kv_head: found 2, expected 6, as \"k_proj.weight\" [24, 8] has it"},
    {"rows of values",
     [](TensorSet& s) {
       Set(s, "v_proj.weight", {12, 24});
     },
     "tensor \"v_proj.weight\": found [12, 24], expected [n_kv_head*head_dim, C] = [8, 24]"},
    {"output's width",
     [](TensorSet& s) {
       Set(s, "o_proj.weight", {24, 20});
     },
     "tensor \"o_proj.weight\": found [24, 20], expected [C, n_head*head_dim] = [24, 24]"},
    {"bias",
     [](TensorSet& s) {
       Set(s, "q_proj.bias", {1, 24});
     },
     "tensor \"q_proj.bias\": found [1, 24], expected one number for each output = [24]"},
    {"n_head divides not",
     [](TensorSet& s) {
       s.settings["n_head"] = "5";
       s.settings.erase("head_dim");
     },
     "n_head: found 5, expected a divisor of 24"},
    {"n_head and head_dim disagree", [](TensorSet& s) { s.settings["n_head"] = "5"; },
     "n_head: found 5, expected 6, as \"q_proj.weight\" [24, 24] has it"},
    {"head_dim divides not", [](TensorSet& s) { s.settings["head_dim"] = "7"; },
     "head_dim: found 7, expected a divisor of 24"},
    {"groups",
     [](TensorSet& s) {
       s.settings["n_kv_head"] = "4";
       Set(s, "k_proj.weight", {16, 24});
       Set(s, "v_proj.weight", {16, 24});
     },
     "n_kv_head: found 4, expected a divisor of n_head = 6"},
    {"no heads", [](TensorSet& s) { s.settings["n_head"] = "0"; },
     "n_head: found 0, expected 1 to"},
    {"negative heads", [](TensorSet& s) { s.settings["n_kv_head"] = "-2"; }, "n_kv_head: found -2"},
    {"absurd heads", [](TensorSet& s) { s.settings["n_head"] = "9223372036854775807"; },
     "n_head: found 9223372036854775807, expected 1 to 16777216"},
    {"beyond numbers", [](TensorSet& s) { s.settings["n_head"] = "92233720368547758070"; },
     "at most 64 bits"},
    {"no number", [](TensorSet& s) { s.settings["n_head"] = "six"; }, "an integer"},
    {"NaN", [](TensorSet& s) { s.settings["rope_theta"] = "nan"; }, "a finite number"},
    {"infinite", [](TensorSet& s) { s.settings["rope_theta"] = "inf"; }, "a finite number"},
    {"no base", [](TensorSet& s) { s.settings["rope_theta"] = "0"; }, "a number above 0"},
    {"unknown position", [](TensorSet& s) { s.settings["position"] = "alibi"; },
     "expected learned, sinusoidal, rope or none"},
    {"no position", [](TensorSet& s) { s.settings.erase("position"); },
     "position: found none stated although rope_theta is, expected rope or none"},
    {"pairing", [](TensorSet& s) { s.settings["rope_pairing"] = "halves"; },
     "expected half or interleaved"},
    {"odd rotation", [](TensorSet& s) { s.settings["rotary_dim"] = "3"; }, "an even number"},
    {"wide rotation", [](TensorSet& s) { s.settings["rotary_dim"] = "6"; },
     "rotary_dim: found 6, expected an even number up to head_dim = 4"},
    {"far position", [](TensorSet& s) { s.settings["rope_first_position"] = "99999999999"; },
     "rope_first_position: found 99999999999"},
    {"window", [](TensorSet& s) { s.settings["window"] = "-1"; }, "window: found -1"},
    {"layout", [](TensorSet& s) { s.settings["qkv_layout"] = "thirds"; },
     "expected blocks or per_head"},
    {"half a past",
     [](TensorSet& s) {
       Set(s, "past_k", {2, 2, 3, 4});
     },
     "no tensor \"past_v\""},
    {"other half",
     [](TensorSet& s) {
       Set(s, "past_v", {2, 2, 3, 4});
     },
     "no tensor \"past_k\""},
    {"past of all heads",
     [](TensorSet& s) {
       Set(s, "past_k", {2, 6, 3, 4});
       Set(s, "past_v", {2, 6, 3, 4});
     },
     "tensor \"past_k\": found [2, 6, 3, 4], expected [B, n_kv_head, P, head_dim] = [2, 2, 3, 4]"},
    {"rank of the past",
     [](TensorSet& s) {
       Set(s, "past_k", {2, 2, 12});
       Set(s, "past_v", {2, 2, 12});
     },
     "expected [B, n_kv_head, P, head_dim]"},
    {"lengths of the past",
     [](TensorSet& s) {
       Set(s, "past_k", {2, 2, 3, 4});
       Set(s, "past_v", {2, 2, 2, 4});
     },
     "tensor \"past_v\": found [2, 2, 2, 4]"},
    {"dy",
     [](TensorSet& s) {
       Set(s, "dy", {2, 8, 24});
     },
     "tensor \"dy\": found [2, 8, 24], expected [B, T, C] = [2, 9, 24]"},
    {"two queries",
     [](TensorSet& s) {
       Set(s, "c_attn.weight", {24, 40});
     },
     "found \"c_attn.weight\" and \"q_proj.weight\", expected one of them"},
    {"fused width",
     [](TensorSet& s) {
       s = Fused(s);
       Set(s, "c_attn.weight", {40, 20});
     },
     "tensor \"c_attn.weight\": found [40, 20], expected [C, (n_head + 2*n_kv_head)*head_dim] with "
     "C = 24, or its transpose"},
    {"fused without keys",
     [](TensorSet& s) {
       s = Fused(s);
       Set(s, "c_attn.weight", {24, 24});
     },
     "tensor \"c_attn.weight\": found [24, 24]"},
    {"fused without output",
     [](TensorSet& s) {
       s = Fused(s);
       s.tensors.erase("o_proj.weight");
     },
     "no tensor \"c_proj.weight\""},
    {"longer keys",
     [](TensorSet& s) {
       s = HeadsOf(s);
       Set(s, "k", {2, 2, 10, 4});
     },
     "tensor \"k\": found [2, 2, 10, 4], expected [B, n_kv_head, T, head_dim] = [2, 2, 9, 4]"},
    {"merged heads",
     [](TensorSet& s) {
       s = HeadsOf(s);
       Set(s, "q", {2, 9, 24});
     },
     "tensor \"q\": found [2, 9, 24], expected [B, n_head, T, head_dim]"},
    {"heads and settings",
     [](TensorSet& s) {
       s = HeadsOf(s);
       s.settings["n_head"] = "4";
     },
     "n_head: found 4, expected 6, as \"q\" [2, 6, 9, 4] has it"},
    {"no values of heads",
     [](TensorSet& s) {
       s = HeadsOf(s);
       s.tensors.erase("v");
     },
     "no tensor \"v\""},
    {"odd heads",
     [](TensorSet& s) {
       s = {};
       Set(s, "q", {1, 1, 2, 3});
       s["k"] = s["v"] = s["q"];
       s.settings = {{"position", "rope"}};
     },
     "rotary_dim: found 3, expected an even number up to head_dim = 3"},
    {"too many scores",
     [](TensorSet& s) {
       s = {};
       Set(s, "q", {1, 1, 8193, 1});
       s["k"] = s["v"] = s["q"];
     },
     "found scores [B, H, T, S] = [1, 1, 8193, 8193], expected at most 67108864 of them"},
};

TEST(AttentionFile, EveryFaultOfAFileIsNamed) {
  for (const Broken& broken : kBroken) {
    TensorSet set = GoldenSet("attention-gqa-rope-half");
    broken.change(set);
    const std::string error = ErrorOf(set);
    EXPECT_THAT(error, HasSubstr(broken.error)) << broken.what;
    EXPECT_TRUE(error.starts_with("set: ")) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(AttentionFile, WholeNumbersAreNoActivations) {
  const TemporaryFolder folder;
  const std::vector<int32_t> x(24);
  const std::vector<float> weight(16);
  std::vector<TensorToWrite> tensors = {{"x", DType::kI32, {2, 3, 4}, x.data(), nullptr}};
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
    tensors.push_back({name, DType::kF32, {4, 4}, weight.data(), nullptr});
  }
  const std::string path = folder / "ints.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, tensors, {{"n_head", "2"}}, false));
  const auto attention = ReadAttentionCase(*TensorFile::Open(path), path);
  ASSERT_FALSE(attention);
  EXPECT_THAT(attention.error().Message(), HasSubstr("tensor \"x\": found I32"));
}

// Whatever sizes are stated, the answer is an error or a trace of just those sizes.
TEST(AttentionFile, StatedSizesHoldOrFail) {
  const TensorSet golden = GoldenSet("attention-gqa-rope-half");
  const TensorFile file = golden.File();
  rc::check([&] {
    SettingTexts given;
    for (const char* name : {"n_head", "n_kv_head", "head_dim", "rotary_dim", "window"}) {
      if (*rc::gen::inRange(0, 2) == 1) given[name] = std::to_string(*rc::gen::inRange(-2, 13));
    }
    const auto attention = ReadAttentionCase(file, "set", given);
    if (!attention) return;
    const AttentionSettings& settings = attention->settings;
    const SettingTexts texts = TextsOf(settings);
    for (const auto& [name, text] : given) RC_ASSERT(texts.at(name) == text || text == "0");
    RC_ASSERT(settings.n_head * settings.head_dim == 24);
    RC_ASSERT(settings.n_kv_head * settings.head_dim == 8);
    Trace trace = Traced(*attention);
    const Array& pattern = trace["pattern"];
    RC_ASSERT(pattern.shape == (std::vector<int64_t>{2, settings.n_head, 9, 9}));
    for (size_t row = 0; row < pattern.values.size(); row += 9) {
      double sum = 0;
      int64_t seen = 0;
      for (size_t s = 0; s < 9; ++s) {
        sum += pattern.values[row + s];
        seen += pattern.values[row + s] > 0;
      }
      const auto t = static_cast<int64_t>(row / 9 % 9);
      RC_ASSERT(std::abs(sum - 1) < 1e-14);
      RC_ASSERT(seen == (settings.window > 0 ? std::min(settings.window, t + 1) : t + 1));
    }
  });
}

}  // namespace
}  // namespace heed
