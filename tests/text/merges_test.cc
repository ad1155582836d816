#include "text/merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace heed {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Merged(const std::vector<BpeMerge>& merges, std::vector<int32_t> symbols) {
  MergeScratch scratch;
  Merge(MergeTable(merges), &symbols, &scratch);
  return symbols;
}

// The definition: look at all pairs, merge the best-ranked one, the leftmost among equals.
std::vector<int32_t> MergedPlainly(const std::vector<BpeMerge>& merges,
                                   std::vector<int32_t> symbols) {
  std::map<std::pair<int32_t, int32_t>, BpeMerge> table;
  for (const BpeMerge& merge : merges) table.emplace(std::pair(merge.left, merge.right), merge);
  while (true) {
    size_t best = symbols.size();
    uint32_t rank = MergeTable::kNoRank;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = table.find({symbols[i], symbols[i + 1]});
      if (found == table.end() || found->second.rank >= rank) continue;
      best = i;
      rank = found->second.rank;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = table.at({symbols[best], symbols[best + 1]}).result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merge, TakesTheBestRankFirst) {
  // 0 0 -> 2 (rank 1), 0 1 -> 3 (rank 0), 2 3 -> 4 (rank 2).
  const std::vector<BpeMerge> merges = {{0, 0, 2, 1}, {0, 1, 3, 0}, {2, 3, 4, 2}};
  EXPECT_THAT(Merged(merges, {0, 0, 0, 1}), ElementsAre(4));
  EXPECT_THAT(Merged(merges, {0, 0, 1}), ElementsAre(0, 3));
  EXPECT_THAT(Merged(merges, {0, 0, 0}), ElementsAre(2, 0));
  EXPECT_THAT(Merged(merges, {1}), ElementsAre(1));
  EXPECT_THAT(Merged(merges, {}), ElementsAre());
}

TEST(MergeTable, KeepsTheFirstOfEqualPairs) {
  const MergeTable table(std::vector<BpeMerge>{{0, 1, 2, 5}, {0, 1, 3, 4}});
  EXPECT_EQ(table.Find(0, 1).result, 2);
  EXPECT_EQ(table.Find(1, 0).rank, MergeTable::kNoRank);
}

// Short texts are scanned, long ones go through a heap.
RC_GTEST_PROP(Merge, EqualsTheDefinition, ()) {
  const int n = *rc::gen::inRange(1, 40);
  std::vector<BpeMerge> merges;
  for (int i = 0; i < n; ++i) {
    const int32_t known = 3 + i;
    merges.push_back({*rc::gen::inRange(0, known), *rc::gen::inRange(0, known), known,
                      static_cast<uint32_t>(*rc::gen::inRange(0, n))});
  }
  const auto size = *rc::gen::element<size_t>(5, 30, 100, 101, 300);
  const auto symbols =
      *rc::gen::container<std::vector<int32_t>>(size, rc::gen::inRange<int32_t>(0, 3));
  RC_ASSERT(Merged(merges, symbols) == MergedPlainly(merges, symbols));
}

}  // namespace
}  // namespace heed
