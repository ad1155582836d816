#include "base/status.h"

#include <algorithm>

#include "base/quote.h"

namespace heed {

std::string Error::Message() const {
  std::string line = where.empty() ? "" : where + ": ";
  line += expected.empty() ? found : "found " + found + ", expected " + expected;
  if (!hint.empty()) line += "; " + hint;
  // Names come from outside: no line may break, and no terminal obey them.
  std::replace(line.begin(), line.end(), '\n', ' ');
  return Printable(line);
}

}  // namespace heed
