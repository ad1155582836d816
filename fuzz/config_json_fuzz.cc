// Whatever the text, the reader answers with settings that survive being written and read again, or
// with an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = heed::ParseModelConfig(text, "fuzz");
  if (!config) return config.error().Message().empty() ? std::abort(), 0 : 0;
  const auto again = heed::ParseModelConfig(heed::ModelConfigJson(*config), "again");
  if (!again || again->family() != config->family() ||
      heed::ParameterCount(*again) != heed::ParameterCount(*config)) {
    std::abort();
  }
  return 0;
}
