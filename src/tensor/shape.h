// Sizes of row-major arrays, safe against sizes that a file made up.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace heed {

// The number of elements of `shape`, 1 for []. Nothing when a size is negative or when the product
// of the sizes that are not 0 exceeds int64, so that strides of an empty array fit too.
std::optional<int64_t> ElementCount(std::span<const int64_t> shape);

// "[2, 3]"
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace heed
