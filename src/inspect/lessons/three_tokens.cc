#include "inspect/lessons/three_tokens.h"

#include <fmt/format.h>

#include "base/plural.h"
#include "kernels/reference/matmul.h"

namespace heed {
namespace {

// x [T, C] times w [C, d].
Result<SmallMatrix> Project(const SmallMatrix& x, const SmallMatrix& w, const std::string& where) {
  if (w.rows != x.columns) {
    return BadRequest(where, fmt::format("{} row{}", w.rows, Plural(w.rows)),
                      fmt::format("{}, the width of --x", x.columns),
                      "each row of x is multiplied with the columns of the weight");
  }
  SmallMatrix y{x.rows, w.columns, std::vector<double>(x.rows * w.columns)};
  reference::Matmul<double>({.M = x.rows,
                             .N = w.columns,
                             .K = x.columns,
                             .a = x.values.data(),
                             .a_row = x.columns,
                             .b = w.values.data(),
                             .b_row = w.columns,
                             .c = y.values.data(),
                             .ldc = w.columns});
  return y;
}

Result<SmallMatrix> Typed(const std::string& where, const std::string& typed, const char* own) {
  return ParseSmallMatrix(where, typed.empty() ? own : typed);
}

}  // namespace

Result<ThreeTokens> MakeThreeTokens(const LessonInput& input) {
  ThreeTokens t;
  HEED_ASSIGN(t.x, Typed("--x", input.x, "1,0,0; 0,1,0; 0,0,1"));
  HEED_ASSIGN(t.w_q, Typed("--w-q", input.w_q, "1,0; 0,1; 1,1"));
  HEED_ASSIGN(t.w_k, Typed("--w-k", input.w_k, "1,0; 1,1; 0,1"));
  HEED_ASSIGN(t.w_v, Typed("--w-v", input.w_v, "2,0; 0,3; 1,1"));
  if (t.w_k.columns != t.w_q.columns) {
    return BadRequest("--w-k", fmt::format("width {}", t.w_k.columns),
                      fmt::format("{}, the width of --w-q", t.w_q.columns),
                      "queries and keys are multiplied with each other");
  }
  HEED_ASSIGN(t.attention.q, Project(t.x, t.w_q, "--w-q"));
  HEED_ASSIGN(t.attention.k, Project(t.x, t.w_k, "--w-k"));
  HEED_ASSIGN(t.attention.v, Project(t.x, t.w_v, "--w-v"));
  return t;
}

Result<std::vector<Step>> TellThreeTokens(const LessonInput& input) {
  HEED_ASSIGN(ThreeTokens t, MakeThreeTokens(input));
  const int64_t T = t.x.rows;
  std::vector<Step> steps = {
      {"x", "the inputs", "T C", {T, t.x.columns}, t.x.values},
      {"W_q", "Q = x W_q", "C d_k", {t.w_q.rows, t.w_q.columns}, t.w_q.values},
      {"W_k", "K = x W_k", "C d_k", {t.w_k.rows, t.w_k.columns}, t.w_k.values},
      {"W_v", "V = x W_v", "C d_v", {t.w_v.rows, t.w_v.columns}, t.w_v.values}};
  HEED_ASSIGN(const std::vector<Step> worked, ExplainSmallAttention(t.attention));
  steps.insert(steps.end(), worked.begin(), worked.end());
  t.attention.causal = false;
  HEED_ASSIGN(const SmallAttention open, ComputeSmallAttention(t.attention));
  steps.push_back({"A, no mask", "every query sees every key", "T S", {T, T}, open.pattern});
  steps.push_back({"Z, no mask", "Z = A V", "T d_v", {T, t.w_v.columns}, open.output});
  return steps;
}

}  // namespace heed
