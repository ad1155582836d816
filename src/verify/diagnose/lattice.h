// Which of many vectors sum up to a given one: more unknowns than equations, but each is 0 or 1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace heed {

// Whether chance leaves no 0 and 1 for n columns that meet a target [C] to `tolerance`, relative.
bool IsDecidable(int64_t n, int64_t C, double tolerance);

// The columns [n, C] whose sum is some positive multiple of target [C], to `tolerance` relative to
// it, as marks; nothing when none are found. By reduction of the lattice that they span (Lenstra,
// Lenstra, Lovász 1982, for low-density sums Lagarias and Odlyzko 1985) and Babai's nearest plane
// (1986): time grows as n^4, and whatever is found was checked.
std::optional<std::vector<bool>> ColumnsAlong(std::span<const double> columns,
                                              std::span<const double> target, double tolerance);

}  // namespace heed
