#include "inspect/lessons/lesson.h"
#include "kernels/reference/cross_entropy.h"
#include "kernels/reference/embedding.h"
#include "kernels/reference/matmul.h"

namespace heed {

Result<std::vector<Step>> TellPreviousToken(const LessonInput&) {
  constexpr int64_t V = 3, d = 2;
  const std::vector<std::string> words = {"cat", "sat", "ran"};
  const std::vector<double> table = {1, 0, 0, 1, 1, 1}, U = {0, 0, 2, 0, 1, 1};
  const int32_t previous = 0, target = 2;
  std::vector<double> v(d), logits(V), loss(1), dv(d), dU(V * d);
  reference::EmbeddingForward<double>(
      {.B = 1, .T_ = 1, .C = d, .V = V, .tokens = &previous, .wte = table.data(), .x = v.data()});
  reference::Matmul<double>({.M = 1,
                             .N = V,
                             .K = d,
                             .a = v.data(),
                             .a_row = d,
                             .b = U.data(),
                             .b_row = 1,
                             .b_col = d,
                             .c = logits.data(),
                             .ldc = V});
  // The kernel leaves softmax - onehot where the logits were.
  std::vector<double> dlogits = logits;
  reference::CrossEntropy<double>(
      {1, V, dlogits.data(), &target, loss.data(), /*backward=*/true, 1.0});
  std::vector<double> softmax = dlogits;
  softmax[target] += 1;
  reference::Matmul<double>({.M = 1,
                             .N = d,
                             .K = V,
                             .a = dlogits.data(),
                             .a_row = V,
                             .b = U.data(),
                             .b_row = d,
                             .c = dv.data(),
                             .ldc = d});
  reference::Matmul<double>({.M = V,
                             .N = d,
                             .K = 1,
                             .a = dlogits.data(),
                             .a_row = 1,
                             .a_col = V,
                             .b = v.data(),
                             .b_row = d,
                             .c = dU.data(),
                             .ldc = d});
  return std::vector<Step>{
      {"V", "a row for each previous token", "V d", {V, d}, table, "", words},
      {"U",
       "a row for each candidate",
       "V d",
       {V, d},
       U,
       "Both are trained: 2 x vocabulary x d = 12 parameters.",
       words},
      {"v", "the row of the previous token, cat", "d", {d}, v},
      {"logits", "U v", "V", {V}, logits, "", {}, words},
      {"softmax", "exp(logit) / sum of exp(logits)", "V", {V}, softmax, "", {}, words},
      {"loss", "-log softmax[ran], in nats", "", {}, loss},
      {"dlogits",
       "softmax - onehot(ran)",
       "V",
       {V},
       dlogits,
       "The right candidate is pulled up by what it lacks, the others are pushed down.",
       {},
       words},
      {"dv", "U^T dlogits", "d", {d}, dv},
      {"dU", "dlogits v^T", "V d", {V, d}, dU, "", words}};
}

}  // namespace heed
