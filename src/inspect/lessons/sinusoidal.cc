#include <fmt/format.h>

#include "inspect/lessons/lesson.h"
#include "kernels/reference/matmul.h"
#include "nn/rope.h"

namespace heed {

Result<std::vector<Step>> TellSinusoidal(const LessonInput&) {
  constexpr int64_t kPositions = 6, kWidth = 4, kWide = 8, kDistance = 3;
  const std::vector<float> small = SinusoidalTable(kPositions, kWidth);
  const std::vector<float> wide = SinusoidalTable(kPositions + kDistance, kWide);
  const std::vector<double> table(wide.begin(), wide.end());
  std::vector<double> products(kPositions);
  std::vector<std::string> positions, pairs;
  for (int64_t p = 0; p < kPositions; ++p) {
    reference::Matmul<double>({.M = 1,
                               .N = 1,
                               .K = kWide,
                               .a = &table[p * kWide],
                               .a_row = kWide,
                               .b = &table[(p + kDistance) * kWide],
                               .b_row = 1,
                               .c = &products[p],
                               .ldc = 1});
    positions.push_back(fmt::format("p{}", p));
    pairs.push_back(fmt::format("p{}.p{}", p, p + kDistance));
  }
  return std::vector<Step>{
      {"PE",
       "sin(p / 10000^(2i/d)) and cos of the same, d = 4",
       "T d",
       {kPositions, kWidth},
       {small.begin(), small.end()},
       "Position 0 is 0, 1, 0, 1. Fast channels tell neighbours apart, slow ones the far.",
       positions,
       {"sin 1", "cos 1", "sin 2", "cos 2"}},
      {"products",
       "PE(p) . PE(p + 3), d = 8",
       "T",
       {kPositions},
       products,
       "The same for every p: sin a sin b + cos a cos b = cos(a - b).",
       {},
       pairs}};
}

}  // namespace heed
