// "Did you mean": the known name nearest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace heed {

// The known name with the smallest edit distance (insert, delete, replace, swap of neighbours) to
// `word`, when that is at most a third of the word's length (at least 1); else the first that
// `word` begins, from three letters on; else "". '-' and '_' count as equal.
std::string NearestName(std::string_view word, std::span<const std::string> known);

}  // namespace heed
