// JSON from outside, read with suspicion.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace heed {

// The one value that `text` holds; `where` names it in errors. Errors (kFormat): what is not JSON
// in UTF-8, a key twice in one object, nesting deeper than 32, a number beyond a double.
Result<nlohmann::json> ParseJson(std::string_view text, const std::string& where);

// The same for an object; another value is an error.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where);

}  // namespace heed
