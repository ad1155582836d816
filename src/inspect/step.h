// One step of a computation shown aloud: a name, the formula, the shape and the numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed {

struct Step {
  std::string name;
  std::string formula;               // in ASCII: "S = Q K^T / sqrt(d_k)"
  std::string axes;                  // a word for each size of `shape`: "T S"
  std::vector<int64_t> shape;        // [] is one number
  std::vector<double> values;        // row-major; -inf where a score is hidden
  std::string note;                  // a sentence on what to see, or ""
  std::vector<std::string> rows;     // a label for each row (all axes but the last), or none
  std::vector<std::string> columns;  // a label for each column (the last axis), or none
};

}  // namespace heed
