// Every fault of the catalogue, planted at three random sizes, stored as f32 and as bf16.
#include <gtest/gtest.h>

#include <set>

#include "support/planted_faults.h"
#include "verify/diagnose/catalogue.h"

namespace heed {
namespace {

class EveryFault : public testing::TestWithParam<PlantedFault> {};

TEST_P(EveryFault, IsNamedAloneOrBesideWhatGivesTheSame) {
  const PlantedFault& fault = GetParam();
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (!fault.Shows(dtype)) continue;
      const auto diagnosis = fault.diagnose(seed, dtype);
      const std::string finding = Finding(diagnosis);
      EXPECT_TRUE(fault.IsRight(finding))
          << fault.id << " " << NameOf(dtype) << " seed " << seed << ": " << finding;
      if (!fault.IsRight(finding)) continue;
      EXPECT_LE(diagnosis->explanations[0].residual, diagnosis->noise_floor);
      EXPECT_GE(diagnosis->reference_residual, diagnosis->explanations[0].residual);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryFault, testing::ValuesIn(PlantedFaults::List()),
                         [](const auto& test) {
                           return test.param.id + "_" + std::to_string(test.index);
                         });

TEST(EveryFaultTest, OfTheCatalogueIsPlanted) {
  std::set<std::string> planted;
  for (const PlantedFault& fault : PlantedFaults::List()) planted.insert(fault.id);
  for (const DumpKind& kind : DumpKinds()) {
    for (const FaultKind& fault : kind.faults()) {
      EXPECT_TRUE(planted.contains(std::string(fault.id))) << fault.id;
    }
  }
}

}  // namespace
}  // namespace heed
