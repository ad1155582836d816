// Whatever the text, the reader of an index answers names of files beside it or an error.
#include <cstdlib>
#include <string_view>

#include "model/folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto names = heed::ParseShardIndex(text, "fuzz");
  if (!names) return names.error().Message().empty() ? std::abort(), 0 : 0;
  for (const std::string& name : *names) {
    if (name.find('/') != std::string::npos) std::abort();
  }
  return 0;
}
