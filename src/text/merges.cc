#include "text/merges.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace heed {
namespace {

// Up to here a scan of all ranks for the smallest is quicker than a heap.
constexpr size_t kShort = 100;
constexpr size_t kAhead = 8;  // merges

// Ranks of all pairs side by side; each merge closes the gap.
void MergeShort(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  size_t pairs = symbols->size() - 1;
  int32_t* ids = symbols->data();
  scratch->ranks.resize(kShort);
  scratch->results.resize(kShort);
  uint32_t* ranks = scratch->ranks.data();
  int32_t* results = scratch->results.data();
  const auto look_up = [&](size_t i) {
    const MergeTable::Found found = table.Find(ids[i], ids[i + 1]);
    ranks[i] = found.rank;
    results[i] = found.result;
  };
  for (size_t i = 0; i < pairs; ++i) look_up(i);
  while (pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < pairs; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == MergeTable::kNoRank) break;
    ids[best] = results[best];
    std::copy(ids + best + 2, ids + pairs + 1, ids + best + 1);
    std::copy(ranks + best + 1, ranks + pairs, ranks + best);
    std::copy(results + best + 1, results + pairs, results + best);
    --pairs;
    if (best > 0) look_up(best - 1);
    if (best < pairs) look_up(best);
  }
  symbols->resize(pairs + 1);
}

// A linked list of the symbols that are left and a heap of candidate pairs, of which those whose
// rank changed since are stale.
void MergeLong(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  std::vector<int32_t>& ids = *symbols;
  auto& links = scratch->links;
  auto& heap = scratch->heap;
  const auto n = static_cast<int32_t>(ids.size());
  links.resize(ids.size());
  heap.clear();
  const auto look_up = [&](int32_t i) {
    MergeScratch::Link& link = links[i];
    const MergeTable::Found found =
        link.next < 0 ? MergeTable::Found{} : table.Find(ids[i], ids[link.next]);
    link.rank = found.rank;
    link.result = found.result;
  };
  for (int32_t i = 0; i < n; ++i) links[i] = {i - 1, i + 1 < n ? i + 1 : -1, 0, 0};
  for (int32_t i = 0; i < n; ++i) {
    look_up(i);
    if (links[i].rank != MergeTable::kNoRank) heap.emplace_back(links[i].rank, i);
  }
  const std::greater<> later;
  std::make_heap(heap.begin(), heap.end(), later);
  const auto renew = [&](int32_t i) {
    look_up(i);
    if (links[i].rank == MergeTable::kNoRank) return;
    heap.emplace_back(links[i].rank, i);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    const auto [rank, i] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    MergeScratch::Link& link = links[i];
    if (link.rank != rank) continue;
    const int32_t gone = link.next;
    ids[i] = link.result;
    link.next = links[gone].next;
    links[gone].rank = MergeTable::kNoRank;
    if (link.next >= 0) links[link.next].previous = i;
    renew(i);
    if (link.previous >= 0) renew(link.previous);
  }
  size_t kept = 0;
  for (int32_t i = 0; i >= 0; i = links[i].next) ids[kept++] = ids[i];
  ids.resize(kept);
}

}  // namespace

MergeTable::MergeTable(std::span<const BpeMerge> merges, const BpeMerge** again) {
  filter_.resize((size_t{1} << (64 - kFilterShift)) / 64);
  entries_.resize(std::bit_ceil(2 * merges.size() + 2));
  mask_ = entries_.size() - 1;
  shift_ = 64 - std::countr_zero(entries_.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    // The table is larger than a core's own cache.
    const BpeMerge &merge = merges[i], ahead = merges[std::min(i + kAhead, merges.size() - 1)];
    __builtin_prefetch(&entries_[Hash(Key(ahead.left, ahead.right)) >> shift_], 1);
    const uint64_t key = Key(merge.left, merge.right);
    const uint64_t bit = Hash(key) >> kFilterShift;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    size_t at = Hash(key) >> shift_;
    while (entries_[at].key != kFree && entries_[at].key != key) at = (at + 1) & mask_;
    if (entries_[at].key == kFree) {
      entries_[at] = {key, {merge.rank, merge.result}};
    } else if (again != nullptr) {
      *again = &merge;
    }
  }
}

void Merge(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShort) {
    MergeShort(table, symbols, scratch);
  } else {
    MergeLong(table, symbols, scratch);
  }
}

}  // namespace heed
