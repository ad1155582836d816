// Steps as text for a terminal, and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "inspect/step.h"

namespace heed {

// A heading with formula and shape, the numbers under each other with at most six decimals, a note.
std::string StepsText(std::span<const Step> steps, size_t width);

// `values` nested as `shape` says; a number that is not finite is null.
nlohmann::ordered_json NestedJson(std::span<const int64_t> shape, std::span<const double> values);

// [{"name","formula","axes","shape","values","rows"?,"columns"?,"note"?}]
nlohmann::ordered_json StepsJson(std::span<const Step> steps);

}  // namespace heed
