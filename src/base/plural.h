// Counts in sentences.
#pragma once

#include <cstdint>

namespace heed {

// What a regular noun takes behind a count: "1 token", "2 tokens".
inline const char* Plural(int64_t count) { return count == 1 ? "" : "s"; }

}  // namespace heed
