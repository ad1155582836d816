#include "verify/diagnose/model_screen.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "verify/diagnose/search.h"

namespace heed {
namespace {

constexpr int64_t kFewRows = 2, kSomeRows = 8;
// Of a large vocabulary.
constexpr int64_t kColumns = 1024;

// The columns, rising, where n rows of `ours` differ most from theirs, both [n, V].
std::vector<int64_t> FarthestColumns(std::span<const double> theirs, std::span<const double> ours,
                                     int64_t V) {
  std::vector<double> squares(V);
  for (size_t i = 0; i < ours.size(); ++i) {
    const double d = Distance(theirs[i], ours[i]);
    squares[static_cast<int64_t>(i) % V] += d * d;
  }
  std::vector<int64_t> columns(V);
  std::iota(columns.begin(), columns.end(), 0);
  std::ranges::stable_sort(columns, [&](int64_t a, int64_t b) { return squares[a] > squares[b]; });
  columns.resize(std::min(V, kColumns));
  std::ranges::sort(columns);
  return columns;
}

}  // namespace

std::vector<std::function<double(const ModelRecipe&)>> BoundsOf(ModelReplay* replay,
                                                                const ModelInput& input,
                                                                const std::vector<double>& theirs,
                                                                const ModelRecipe& right) {
  const int64_t all = std::accumulate(input.count.begin(), input.count.end(), int64_t{0});
  const int64_t V = std::ssize(theirs) / (input.B * input.T);
  const int64_t most = std::min(kSomeRows, input.count[0]);
  const auto first = std::span(theirs).subspan(input.first[0] * V, most * V);
  std::vector<int64_t> columns(V);
  std::iota(columns.begin(), columns.end(), 0);
  replay->LookAt({});
  if (V > kColumns) {
    const std::optional<std::vector<double>> ours = replay->Beginning(right, most);
    if (!ours) return {};
    columns = FarthestColumns(first, *ours, V);
    replay->LookAt(columns);
  }
  std::vector<double> seen;
  for (int64_t row = 0; row < most; ++row) {
    for (const int64_t column : columns) seen.push_back(first[row * V + column]);
  }
  std::vector<std::function<double(const ModelRecipe&)>> bounds;
  for (const int64_t rows : {kFewRows, kSomeRows}) {
    // A bound should cost less than half of what it saves.
    if (rows > most || 2 * rows > all) break;
    bounds.push_back([=, norm = EuclideanNorm(theirs)](const ModelRecipe& recipe) {
      const std::optional<std::vector<double>> ours = replay->Beginning(recipe, rows);
      if (!ours) return 0.0;
      return LeastResidual(std::span(seen).first(ours->size()), *ours, norm);
    });
  }
  return bounds;
}

}  // namespace heed
