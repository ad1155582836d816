// The one document of --json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace heed {

// Names and prompts need not be UTF-8; JSON must: what is not becomes U+FFFD.
inline std::string DocumentText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace heed
