// What the search sees of a recipe at a few rows is what the whole has there.
#include <gtest/gtest.h>

#include <cmath>

#include "support/planted_attention.h"
#include "support/planted_dump.h"
#include "verify/diagnose/attention_search.h"

namespace heed {
namespace {

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(
      a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

// Every fault that can be replayed, under the first convention of this case.
void ExpectGlancesLikeTheWhole(const PlantedCase& sizes) {
  const Result<AttentionDump> dump =
      ReadAttentionDump(PlantedAttention(sizes, {}, StoredAsFloat).Dump().File(), "dump", {});
  ASSERT_TRUE(dump.has_value());
  AttentionSearch search(*dump);
  const std::vector<int64_t> positions = {sizes.T / 3, sizes.T - 1, 0};
  search.replay().LookAt(positions);
  int64_t seen = 0, mixed = 0;
  for (const AttentionFault& fault : AttentionFaultTable()) {
    for (const AttentionRecipe& recipe : search.RecipesOf({std::string(fault.kind.id)})) {
      for (const Stage stage :
           {Stage::kScores, Stage::kPattern, Stage::kZ, Stage::kMerged, Stage::kY}) {
        const auto glance = search.replay().Glance(recipe, stage);
        ++(glance == nullptr ? mixed : seen);
        if (glance == nullptr) continue;
        const auto whole = search.replay().Tensor(recipe, stage);
        const int64_t heads = stage < Stage::kMerged ? sizes.H : 1;
        const int64_t width = std::ssize(*whole) / (sizes.B * heads * sizes.T);
        EXPECT_TRUE(SameBits(*glance, RowsAt(positions, sizes.T, width, *whole)))
            << fault.kind.id << ", " << NameOf(stage);
      }
    }
  }
  EXPECT_GT(seen, 20 * mixed);
  EXPECT_GT(mixed, 0);
}

TEST(AttentionGlance, HasTheRowsOfTheWhole) {
  ExpectGlancesLikeTheWhole({.B = 2, .T = 9, .seed = 3});
  ExpectGlancesLikeTheWhole({.B = 3, .T = 8, .P = 5, .H = 4, .Hkv = 2, .window = 6, .seed = 4});
}

TEST(AttentionGlance, HasTheRowsOfPaddedAndSlopedOnes) {
  ExpectGlancesLikeTheWhole(
      {.B = 3, .T = 9, .rope = false, .pads = {2, 0, -3}, .alibi = true, .seed = 5});
  ExpectGlancesLikeTheWhole({.B = 2,
                             .T = 8,
                             .pads = {3, 1},
                             .counts_tokens = true,
                             .norm = PlantedCase::Norm::kBefore,
                             .seed = 6});
}

}  // namespace
}  // namespace heed
