// heed diagnose on attention with results of other paths of one program, and with gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/planted_attention.h"
#include "support/planted_dump.h"
#include "verify/diagnose/attention_diagnosis.h"

namespace heed {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const PlantedCase kSizes{.B = 2, .T = 7, .H = 6, .Hkv = 3, .D = 8, .C = 26, .seed = 51};

Result<Diagnosis> Diagnose(const TensorSet& set) {
  return DiagnoseAttention(set.File(), "dump", {});
}

TensorSet InTraining(const PlantedCase& sizes, const std::set<std::string>& faults) {
  TensorSet set = PlantedAttention(sizes, faults, StoredAsFloat).Dump();
  set.settings["dropout"] = "0.3";
  return set;
}

// One pass cannot tell a dropout that is never called from one that was switched off.
TEST(AttentionPaths, AStatedDropoutThatDropsNothingIsAFault) {
  const auto alone = Diagnose(InTraining(kSizes, {}));
  EXPECT_EQ(Finding(alone), "ambiguous: dropout_unused | dropout_off_for_good");
  EXPECT_THAT(alone->ask_for, ElementsAre("y_first"));
  EXPECT_EQ(Finding(Diagnose(InTraining(kSizes, {"gqa_tiled"}))),
            "ambiguous: dropout_unused + gqa_tiled | dropout_off_for_good + gqa_tiled");
  EXPECT_THAT(Finding(Diagnose(InTraining(kSizes, {"dropout_live_in_eval"}))), "correct");
}

// 0.7 to the power of so few weights is no proof.
TEST(AttentionPaths, FewWeightsDoNotTellWhetherDropoutActs) {
  const PlantedCase sizes{.B = 1, .T = 2, .H = 3, .Hkv = 3, .D = 8, .C = 26, .seed = 52};
  const auto diagnosis = Diagnose(InTraining(sizes, {}));
  EXPECT_EQ(Finding(diagnosis), "correct");
  EXPECT_THAT(diagnosis->seen, Contains(HasSubstr("the dump is too small")));
  EXPECT_THAT(diagnosis->ask_for, ElementsAre("more positions or batch rows"));
}

TEST(AttentionPaths, AFaultOfEvaluationAloneIsSaid) {
  TensorSet set = PlantedAttention(kSizes, {}, StoredAsFloat).Dump();
  set["y_eval"] = PlantedAttention(kSizes, {"rope_on_v"}, StoredAsFloat).Dump()["y"];
  const auto diagnosis = Diagnose(set);
  EXPECT_EQ(Finding(diagnosis), "rope_on_v");
  EXPECT_THAT(diagnosis->seen, Contains("y is right: the fault is in y_eval alone"));
  // On both paths it is the mask itself that is missing.
  set["y"] = set["y_eval"] = PlantedAttention(kSizes, {"mask_missing"}, StoredAsFloat).Dump()["y"];
  EXPECT_EQ(Finding(Diagnose(set)), "mask_missing");
  set["y_eval"].shape = {2, 26, 7};
  EXPECT_THAT(Finding(Diagnose(set)), HasSubstr("\"y_eval\": found [2, 26, 7]"));
}

// A first call behind a cache is wrong as well: no table was kept.
TEST(AttentionPaths, ARestartInEveryCallIsNoKeptTable) {
  PlantedCase sizes = kSizes;
  sizes.P = 4;
  TensorSet set = PlantedAttention(sizes, {"position_restart"}, StoredAsFloat).Dump();
  set["y_first"] = set["y"];
  EXPECT_EQ(Finding(Diagnose(set)), "position_restart");
}

// Gradients of the goldens, computed in float64 by automatic differentiation.
TensorSet WithGradients(const std::string& name) {
  const std::string path = std::string(HEED_GOLDEN_DIR) + "/" + name + ".safetensors";
  TensorSet set = TensorSet::Of(*TensorFile::Open(path));
  std::vector<std::string> expected;
  for (const auto& [key, array] : set.tensors) {
    if (key.starts_with("expect.")) expected.push_back(key);
  }
  for (const std::string& key : expected) {
    if (key == "expect.y" || key.starts_with("expect.grad.")) set.Rename(key, key.substr(7));
  }
  return set;
}

TEST(AttentionPaths, RightGradientsAreRight) {
  for (const char* name : {"attention-mha-bias", "attention-gqa-rope-half"}) {
    const auto diagnosis = Diagnose(WithGradients(name));
    EXPECT_EQ(Finding(diagnosis), "correct") << name;
    EXPECT_THAT(diagnosis->seen, Contains("the gradients that were saved are right")) << name;
  }
}

TEST(AttentionPaths, AnotherWrongGradientHasNoNameAndAPlace) {
  TensorSet set = WithGradients("attention-mha-bias");
  for (double& value : set["grad.o_proj.weight"].values) value *= 1.5;
  const auto diagnosis = Diagnose(set);
  EXPECT_EQ(Finding(diagnosis), "unexplained");
  ASSERT_TRUE(diagnosis->first_difference.has_value());
  EXPECT_EQ(diagnosis->first_difference->tensor, "grad.o_proj.weight");
  set["grad.o_proj.weight"].shape = {1, 1};
  EXPECT_THAT(Finding(Diagnose(set)), HasSubstr("\"grad.o_proj.weight\": found"));
}

TEST(AttentionPaths, RowsWithoutKeysAreComparedWhereTheyAreStated) {
  PlantedCase sizes = kSizes;
  sizes.pads = {3, 1};
  sizes.empty_rows_are_means = true;
  TensorSet set = PlantedAttention(sizes, {}, StoredAsFloat).Dump();
  EXPECT_EQ(Finding(Diagnose(set)), "correct");
  set.settings["rows_without_keys"] = "mean";
  EXPECT_EQ(Finding(Diagnose(set)), "correct");
  set.settings["rows_without_keys"] = "zero";
  EXPECT_EQ(Finding(Diagnose(set)), "fully_masked_row_uniform");
  set.settings["rows_without_keys"] = "none";
  EXPECT_THAT(Finding(Diagnose(set)), HasSubstr("rows_without_keys: found 'none'"));
}

}  // namespace
}  // namespace heed
