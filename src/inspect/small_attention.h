// Attention of one head on a few typed numbers, every stage kept, in double by the reference
// kernels; and what a softmax over the wrong axis does to it.
//
// Letters: T queries, S keys, d_k width of queries and keys, d_v width of values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/status.h"
#include "inspect/step.h"

namespace heed {

struct SmallMatrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;  // row-major
};

// Rows separated by ';', numbers by ','. Errors (kRequest) name `where`, row and column: nothing,
// rows of unequal width, what is no finite number.
Result<SmallMatrix> ParseSmallMatrix(const std::string& where, std::string_view text);

// Which sums of the pattern are 1: those of each query's row, or, the mistake, of each key's
// column.
enum class SoftmaxAxis { kRow, kColumn };
std::span<const EnumName<SoftmaxAxis>> EnumNames(SoftmaxAxis);

struct SmallAttentionCase {
  SmallMatrix q, k, v;  // [T, d_k], [S, d_k], [S, d_v]
  bool causal = true;   // aligned at the last key
  SoftmaxAxis softmax_axis = SoftmaxAxis::kRow;
};

struct SmallAttention {
  std::vector<double> products;  // [T, S]: Q K^T
  std::vector<double> scores;    // [T, S]: scaled; -inf where hidden
  std::vector<double> pattern;   // [T, S]: exactly 0 where hidden
  std::vector<double> row_sums;  // [T]: of the pattern
  std::vector<double> output;    // [T, d_v]
};

// Errors (kRequest) name --q, --k or --v: widths or numbers of rows that do not fit.
Result<SmallAttention> ComputeSmallAttention(const SmallAttentionCase& attention);

// The same as steps, with the row sums and, where a mask hides something, what moves in the earlier
// rows when 1 is added to the last query alone.
Result<std::vector<Step>> ExplainSmallAttention(const SmallAttentionCase& attention);

}  // namespace heed
