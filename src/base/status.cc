#include "base/status.h"

namespace heed {

std::string Error::Message() const {
  std::string line = where.empty() ? "" : where + ": ";
  line += expected.empty() ? found : "found " + found + ", expected " + expected;
  if (!hint.empty()) line += "; " + hint;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return line;
}

}  // namespace heed
