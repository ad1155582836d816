// The entries of AttentionFaultTable(), listed by the part of the computation that goes wrong, and
// what the lists are written with.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verify/diagnose/attention_faults.h"

namespace heed::attention_faults {

// Entries: identifier, what is wrong, the repair, the right line in PyTorch and in C++, the test.
std::span<const AttentionFault> OfCache();        // and of positions behind one
std::span<const AttentionFault> OfMask();         // padding, packed rows, slopes, windows
std::span<const AttentionFault> OfScores();       // scale, softmax, dropout
std::span<const AttentionFault> OfProjections();  // heads, and norms of q and k
std::span<const AttentionFault> OfPositions();    // RoPE

using Recipe = AttentionRecipe;
using Variants = std::vector<Variant>;
using Fits = std::vector<FittedFault>;

template <class Set>
Variant One(Set set, std::string detail = "") {
  return {Change(std::move(set)), std::move(detail)};
}

// Of a layer with RoPE.
template <class Set>
Variants Turned(const AttentionFacts& f, Set set) {
  return f.rotary == 0 ? Variants() : Variants{One(set)};
}

inline Variants Joined(Variants a, const Variants& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace heed::attention_faults
