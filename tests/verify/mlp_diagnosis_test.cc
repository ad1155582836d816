#include "verify/diagnose/mlp_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "support/planted_dump.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

double Tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double Erf(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
double Silu(double x) { return x / (1 + std::exp(-x)); }

// x [rows, in] by w, stored [in, out] or [out, in].
Numbers Times(const Numbers& x, const Numbers& w, size_t in, bool in_out) {
  const size_t out = w.size() / in;
  Numbers y(x.size() / in * out);
  for (size_t r = 0; r < x.size() / in; ++r) {
    for (size_t j = 0; j < out; ++j) {
      for (size_t i = 0; i < in; ++i) {
        y[r * out + j] += x[r * in + i] * (in_out ? w[i * out + j] : w[j * in + i]);
      }
    }
  }
  return y;
}

Numbers Plus(Numbers y, const Numbers& bias) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  return y;
}

struct MlpDump {
  size_t C, F;
  DType dtype;
  Numbers x, fc, proj, fc_bias, proj_bias, gate;

  MlpDump(uint32_t seed, size_t width, size_t inner, DType type) : C(width), F(inner), dtype(type) {
    Draw draw(seed, dtype);
    x = draw.Normal(14 * C);
    fc = draw.Normal(C * F, 1 / std::sqrt(double(C)));
    gate = draw.Normal(C * F, 1 / std::sqrt(double(C)));
    proj = draw.Normal(C * F, 1 / std::sqrt(double(F)));
    fc_bias = draw.Normal(F, 0.3);
    proj_bias = draw.Normal(C, 0.3);
  }

  Array Of(const Numbers& values, std::vector<int64_t> shape) const {
    return {std::move(shape), values, dtype};
  }

  std::string Gpt2Finding(const Numbers& y, bool in_out = true) const {
    const auto c = int64_t(C), f = int64_t(F);
    TensorSet set;
    set["x"] = Of(x, {2, 7, c});
    set["h.3.mlp.c_fc.weight"] = Of(fc, in_out ? std::vector{c, f} : std::vector{f, c});
    set["h.3.mlp.c_fc.bias"] = Of(fc_bias, {f});
    set["h.3.mlp.c_proj.weight"] = Of(proj, in_out ? std::vector{f, c} : std::vector{c, f});
    set["h.3.mlp.c_proj.bias"] = Of(proj_bias, {c});
    set["y"] = Of(y, {2, 7, c});
    const TensorFile file = set.File();
    return Finding(DiagnoseMlp(file, "mlp", {}));
  }

  std::string LlamaFinding(const Numbers& y) const {
    const auto c = int64_t(C), f = int64_t(F);
    TensorSet set;
    set["x"] = Of(x, {2, 7, c});
    set["gate_proj.weight"] = Of(gate, {f, c});
    set["up_proj.weight"] = Of(fc, {f, c});
    set["down_proj.weight"] = Of(proj, {c, f});
    set["y"] = Of(y, {2, 7, c});
    set.settings["mlp"] = "swiglu";
    const TensorFile file = set.File();
    return Finding(DiagnoseMlp(file, "mlp", {}));
  }

  Numbers Gpt2(double (*act)(double), bool in_out = true, bool with_bias = true,
               bool turned = false) const {
    Numbers h = Plus(Times(x, fc, C, in_out != turned), fc_bias);
    for (double& value : h) value = act(value);
    const Numbers y = Times(h, proj, F, in_out);
    return with_bias ? Plus(y, proj_bias) : y;
  }

  Numbers Llama(const std::function<double(double gate, double up)>& hidden,
                bool turned_gate = false) const {
    const Numbers g = Times(x, gate, C, turned_gate);
    Numbers h = Times(x, fc, C, false);
    for (size_t i = 0; i < h.size(); ++i) h[i] = hidden(g[i], h[i]);
    return Times(h, proj, F, false);
  }
};

class MlpDiagnosisTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, MlpDiagnosisTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST_P(MlpDiagnosisTest, GeluFaultsAreNamedAlone) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const MlpDump dump(seed, 9 + seed, 23 + 2 * seed, GetParam());
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Tanh)), "correct");
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Erf)), "gelu_form");
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2([](double x) { return Tanh(x) / x; })), "gelu_form");
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2([](double x) { return std::max(x, 0.0); })),
              "mlp_activation");
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Tanh, true, false)), "mlp_bias_missing");
  }
}

TEST_P(MlpDiagnosisTest, EitherLayoutIsRight) {
  for (const size_t inner : {size_t{10}, size_t{31}}) {
    const MlpDump dump(4, 10, inner, GetParam());
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Tanh, false), false), "correct");
    EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Tanh, true), true), "correct");
  }
}

TEST_P(MlpDiagnosisTest, OneTurnedSquareWeightIsNamed) {
  const MlpDump dump(5, 12, 12, GetParam());
  EXPECT_EQ(dump.Gpt2Finding(dump.Gpt2(Tanh, true, true, true)), "linear_transposed");
  EXPECT_EQ(dump.LlamaFinding(dump.Llama([](double g, double u) { return Silu(g) * u; }, true)),
            "linear_transposed");
}

TEST_P(MlpDiagnosisTest, GateFaultsAreNamedAlone) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const MlpDump dump(seed, 8 + seed, 19 + seed, GetParam());
    const auto finding = [&](double (*hidden)(double, double)) {
      return dump.LlamaFinding(dump.Llama(hidden));
    };
    EXPECT_EQ(finding([](double g, double u) { return Silu(g) * u; }), "correct");
    EXPECT_EQ(finding([](double g, double u) { return Silu(u) * g; }), "glu_order");
    EXPECT_EQ(finding([](double g, double u) { return Silu(g * u); }), "glu_order");
    EXPECT_EQ(finding([](double, double u) { return Silu(u); }), "glu_order");
    EXPECT_EQ(finding([](double g, double u) { return Erf(g) * u; }), "mlp_activation");
  }
}

TEST(MlpDiagnosisRefusalTest, NamesTheTensor) {
  const MlpDump dump(1, 6, 10, DType::kF32);
  TensorSet set;
  set["x"] = dump.Of(dump.x, {14, 6});
  set["c_fc.weight"] = dump.Of(dump.fc, {6, 10});
  const TensorFile missing = set.File();
  EXPECT_THAT(Finding(DiagnoseMlp(missing, "mlp", {})), testing::HasSubstr("c_proj.weight"));
  set["c_proj.weight"] = dump.Of(dump.proj, {5, 12});
  set["y"] = dump.Of(dump.x, {14, 6});
  const TensorFile misshapen = set.File();
  EXPECT_THAT(Finding(DiagnoseMlp(misshapen, "mlp", {})),
              testing::HasSubstr("\"c_proj.weight\": found [5, 12]"));
}

}  // namespace
}  // namespace heed
