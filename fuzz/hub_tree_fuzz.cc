// Whatever a hub lists, its files are below a folder, have a size and a checksum, or are an error.
#include <cstdlib>
#include <string_view>

#include "model/hub.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto files = heed::ParseHubTree(text, "fuzz");
  if (!files) return files.error().Message().empty() ? std::abort(), 0 : 0;
  for (const heed::HubFile& file : *files) {
    const std::string path = "/" + file.path + "/";
    if (path.find("//") != path.npos || path.find("/../") != path.npos) std::abort();
    if (file.size < 0 || (file.hash.size() != 40 && file.hash.size() != 64)) std::abort();
  }
  return 0;
}
