#include "verify/diagnose/mlp_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/planted_mlp.h"

namespace heed {
namespace {

std::string FindingOf(const TensorSet& set) {
  const TensorFile file = set.File();
  return Finding(DiagnoseMlp(file, "mlp", {}));
}

class MlpDiagnosisTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, MlpDiagnosisTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST_P(MlpDiagnosisTest, RightLayersAreCorrect) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const MlpDump dump(seed, 8 + seed, 19 + seed, GetParam());
    EXPECT_EQ(FindingOf(dump.Gpt2Set(dump.Gpt2(MlpDump::Tanh))), "correct");
    EXPECT_EQ(FindingOf(dump.LlamaSet(
                  dump.Llama([](double g, double u) { return MlpDump::Silu(g) * u; }))),
              "correct");
  }
}

TEST_P(MlpDiagnosisTest, EitherLayoutIsRight) {
  for (const size_t inner : {size_t{10}, size_t{31}}) {
    const MlpDump dump(4, 10, inner, GetParam());
    for (const bool in_out : {false, true}) {
      EXPECT_EQ(FindingOf(dump.Gpt2Set(dump.Gpt2(MlpDump::Tanh, in_out), in_out)), "correct");
    }
  }
}

TEST_P(MlpDiagnosisTest, OneTurnedSquareWeightIsNamed) {
  const MlpDump dump(5, 12, 12, GetParam());
  EXPECT_EQ(FindingOf(dump.Gpt2Set(dump.Gpt2(MlpDump::Tanh, true, true, true))),
            "linear_transposed");
  EXPECT_EQ(FindingOf(dump.LlamaSet(
                dump.Llama([](double g, double u) { return MlpDump::Silu(g) * u; }, true))),
            "linear_transposed");
}

// Other forms than those that are planted everywhere.
TEST_P(MlpDiagnosisTest, RarerFormsAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const MlpDump dump(seed, 8 + seed, 19 + seed, GetParam());
    const auto gated = [&](double (*hidden)(double, double)) {
      return FindingOf(dump.LlamaSet(dump.Llama(hidden)));
    };
    EXPECT_EQ(FindingOf(dump.Gpt2Set(dump.Gpt2([](double x) { return MlpDump::Tanh(x) / x; }))),
              "gelu_form");
    EXPECT_EQ(gated([](double g, double u) { return MlpDump::Silu(g * u); }), "glu_order");
    EXPECT_EQ(gated([](double, double u) { return MlpDump::Silu(u); }), "glu_order");
    EXPECT_EQ(gated([](double g, double u) { return MlpDump::Erf(g) * u; }), "mlp_activation");
  }
}

TEST(MlpRefusalTest, ARefusalNamesTheTensor) {
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
