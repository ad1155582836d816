#include "inspect/small_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fields_text.h"
#include "base/plural.h"
#include "base/quote.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/cross_entropy.h"
#include "kernels/reference/matmul.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t end = std::min(text.find(separator), text.size());
    pieces.push_back(text.substr(0, end));
    if (end == text.size()) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \t\n"), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(" \t\n") + 1);
}

Status CheckSizes(const SmallAttentionCase& c) {
  if (c.k.columns != c.q.columns) {
    return BadRequest("--k", fmt::format("rows of width {}", c.k.columns),
                      fmt::format("{}, the width of --q", c.q.columns),
                      "queries and keys are multiplied with each other");
  }
  if (c.v.rows != c.k.rows) {
    return BadRequest("--v", fmt::format("{} row{}", c.v.rows, Plural(c.v.rows)),
                      fmt::format("{}, as many as --k has", c.k.rows), "each key has one value");
  }
  if (c.causal && c.q.rows > c.k.rows) {
    return BadRequest("--q", fmt::format("{} rows", c.q.rows),
                      fmt::format("at most {}, the rows of --k", c.k.rows),
                      "the first queries would see no key; --no-causal lets every query see all");
  }
  return {};
}

// Sets the column of key s to the softmax over the queries that see it.
void ColumnSoftmax(const Numbers& scores, int64_t S, int64_t s, Numbers* pattern) {
  Numbers seen;
  for (size_t at = static_cast<size_t>(s); at < scores.size(); at += S) {
    if (scores[at] != kHidden) seen.push_back(scores[at]);
  }
  const auto softmax = reference::RowSoftmaxOf(seen.data(), static_cast<int64_t>(seen.size()));
  for (size_t at = static_cast<size_t>(s); at < scores.size(); at += S) {
    (*pattern)[at] = scores[at] == kHidden ? 0 : std::exp(scores[at] - softmax.max) / softmax.sum;
  }
}

std::vector<std::string> Labels(const char* letter, int64_t n) {
  std::vector<std::string> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back(fmt::format("{}{}", letter, i));
  return labels;
}

// How far the outputs before the last row move when 1 is added to the last query: [T - 1].
Result<Numbers> MovedByLastQuery(const SmallAttentionCase& c, const Numbers& output) {
  SmallAttentionCase changed = c;
  for (int64_t d = 0; d < c.q.columns; ++d) {
    changed.q.values[(c.q.rows - 1) * c.q.columns + d] += 1;
  }
  HEED_ASSIGN(const SmallAttention moved, ComputeSmallAttention(changed));
  Numbers largest(c.q.rows - 1);
  for (int64_t t = 0; t + 1 < c.q.rows; ++t) {
    for (int64_t d = 0; d < c.v.columns; ++d) {
      const int64_t at = t * c.v.columns + d;
      largest[t] = std::max(largest[t], std::abs(moved.output[at] - output[at]));
    }
  }
  return largest;
}

}  // namespace

std::span<const EnumName<SoftmaxAxis>> EnumNames(SoftmaxAxis) {
  static constexpr EnumName<SoftmaxAxis> kNames[] = {{SoftmaxAxis::kRow, "row"},
                                                     {SoftmaxAxis::kColumn, "column"}};
  return kNames;
}

Result<SmallMatrix> ParseSmallMatrix(const std::string& where, std::string_view text) {
  if (Trimmed(text).empty()) {
    return BadRequest(where, "nothing", "rows separated by ';', numbers by ','",
                      "for example \"1,0; 0,1\"");
  }
  SmallMatrix matrix;
  for (const std::string_view row : Split(text, ';')) {
    int64_t columns = 0;
    for (const std::string_view number : Split(row, ',')) {
      double value = 0;
      ++columns;
      if (!ParseField(where, Trimmed(number), &value)) {
        return BadRequest(where,
                          fmt::format("{} as number {} of row {}", Quoted(Trimmed(number)), columns,
                                      matrix.rows + 1),
                          "a finite number", "rows are separated by ';', numbers by ','");
      }
      matrix.values.push_back(value);
    }
    if (matrix.rows == 0) matrix.columns = columns;
    ++matrix.rows;
    if (columns != matrix.columns) {
      return BadRequest(where, fmt::format("row {} of width {}", matrix.rows, columns),
                        fmt::format("{}, the width of row 1", matrix.columns),
                        "all rows of a matrix are equally wide");
    }
  }
  return matrix;
}

Result<SmallAttention> ComputeSmallAttention(const SmallAttentionCase& c) {
  HEED_TRY(CheckSizes(c));
  const int64_t T = c.q.rows, S = c.k.rows, D = c.q.columns;
  SmallAttention a{Numbers(T * S), Numbers(T * S), Numbers(T * S), Numbers(T),
                   Numbers(T * c.v.columns)};
  reference::Matmul<double>({.M = T,
                             .N = S,
                             .K = D,
                             .a = c.q.values.data(),
                             .a_row = D,
                             .b = c.k.values.data(),
                             .b_row = 1,
                             .b_col = D,
                             .c = a.products.data(),
                             .ldc = S});
  for (int64_t t = 0; t < T; ++t) {
    // A query alone sees every key up to the last; causal ones, up to their own.
    const AttentionArgs<double> args{.B = 1,
                                     .T_ = c.causal ? T : 1,
                                     .S = S,
                                     .H = 1,
                                     .Hkv = 1,
                                     .D = D,
                                     .scale = 1 / std::sqrt(static_cast<double>(D)),
                                     .q = c.causal ? c.q.values.data() : &c.q.values[t * D],
                                     .q_row = D,
                                     .k = c.k.values.data(),
                                     .kv_row = D};
    reference::AttentionRow(args, 0, 0, c.causal ? t : 0, &a.scores[t * S], &a.pattern[t * S]);
  }
  if (c.softmax_axis == SoftmaxAxis::kColumn) {
    for (int64_t s = 0; s < S; ++s) ColumnSoftmax(a.scores, S, s, &a.pattern);
  }
  for (int64_t at = 0; at < T * S; ++at) a.row_sums[at / S] += a.pattern[at];
  reference::Matmul<double>({.M = T,
                             .N = c.v.columns,
                             .K = S,
                             .a = a.pattern.data(),
                             .a_row = S,
                             .b = c.v.values.data(),
                             .b_row = c.v.columns,
                             .c = a.output.data(),
                             .ldc = c.v.columns});
  const std::pair<const char*, const Numbers*> sums[] = {{"Q K^T", &a.products},
                                                         {"A V", &a.output}};
  for (const auto& [where, values] : sums) {
    for (const double value : *values) {
      if (std::isfinite(value)) continue;
      return BadRequest(where, fmt::format("{}", value), "finite numbers", "type smaller ones");
    }
  }
  return a;
}

Result<std::vector<Step>> ExplainSmallAttention(const SmallAttentionCase& c) {
  HEED_ASSIGN(const SmallAttention a, ComputeSmallAttention(c));
  const int64_t T = c.q.rows, S = c.k.rows;
  const bool column = c.softmax_axis == SoftmaxAxis::kColumn;
  const auto hidden = std::count(a.scores.begin(), a.scores.end(), kHidden);
  Numbers scaled = a.products;
  for (double& x : scaled) x /= std::sqrt(static_cast<double>(c.q.columns));
  const std::vector<std::string> q = Labels("q", T), k = Labels("k", S), z = Labels("z", T);

  std::vector<Step> steps;
  steps.push_back({"Q",
                   "the queries, one row for each position",
                   "T d_k",
                   {T, c.q.columns},
                   c.q.values,
                   "",
                   q});
  steps.push_back({"K", "the keys", "S d_k", {S, c.k.columns}, c.k.values, "", k});
  steps.push_back({"V", "the values", "S d_v", {S, c.v.columns}, c.v.values, "", Labels("v", S)});
  steps.push_back(
      {"products", "Q K^T: every query with every key", "T S", {T, S}, a.products, "", q, k});
  steps.push_back({"scaled",
                   fmt::format("Q K^T / sqrt(d_k), d_k = {}", c.q.columns),
                   "T S",
                   {T, S},
                   std::move(scaled),
                   "",
                   q,
                   k});
  const std::string mask = S == T ? "query t sees the keys s <= t"
                                  : fmt::format("query t sees the keys s <= t + {}", S - T);
  steps.push_back({"scores",
                   c.causal ? "masked: " + mask : "no mask: every query sees every key",
                   "T S",
                   {T, S},
                   a.scores,
                   hidden > 0 ? "Hidden scores are -inf, so that their weight is exactly 0." : "",
                   q,
                   k});
  steps.push_back({"pattern",
                   column ? "A[t,s] = exp(S[t,s]) / sum over QUERIES t of exp(S[t,s]): wrong axis"
                          : "A[t,s] = exp(S[t,s]) / sum over keys s of exp(S[t,s])",
                   "T S",
                   {T, S},
                   a.pattern,
                   "",
                   q,
                   k});
  const bool whole = std::all_of(a.row_sums.begin(), a.row_sums.end(),
                                 [](double sum) { return std::abs(sum - 1) < 1e-12; });
  steps.push_back({"row sums",
                   "sum over keys s of A[t,s]",
                   "T",
                   {T},
                   a.row_sums,
                   whole ? "Every row is a mean with weights that sum to 1."
                         : "Rows that do not sum to 1 are no weighted means: the softmax ran along "
                           "the wrong axis.",
                   {},
                   q});
  steps.push_back({"output", "Z = A V", "T d_v", {T, c.v.columns}, a.output, "", z});
  if (hidden > 0 && T > 1) {
    HEED_ASSIGN(Numbers moved, MovedByLastQuery(c, a.output));
    const bool leaks = std::any_of(moved.begin(), moved.end(), [](double m) { return m > 0; });
    steps.push_back({"leak",
                     "max |change of Z[t]| when 1 is added to the last query alone",
                     "T-1",
                     {T - 1},
                     std::move(moved),
                     leaks ? "A later query moves earlier outputs: it is in every denominator, and "
                             "the mask does not help."
                           : "Nothing earlier moves: the past does not see the future.",
                     {},
                     Labels("z", T - 1)});
  }
  return steps;
}

}  // namespace heed
