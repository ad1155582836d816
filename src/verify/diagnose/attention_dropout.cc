#include "verify/diagnose/attention_dropout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr double kLeastGain = 1.005;
constexpr double kMostDropped = 0.8;

Explanation Named(double residual, double gain, const std::string& where) {
  return {{"dropout_live_in_eval"}, residual, fmt::format("p = {:.3g} {}", 1 - 1 / gain, where)};
}

// `ours` with what is 0 in theirs dropped and the rest times one gain, which is returned; 0 when
// nothing was dropped or kept.
double DropAlike(const Numbers& theirs, Numbers* ours) {
  double cross = 0, size = 0;
  bool dropped = false;
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (theirs[i] == 0) {
      dropped |= (*ours)[i] != 0;
      (*ours)[i] = 0;
    }
    cross += theirs[i] * (*ours)[i];
    size += (*ours)[i] * (*ours)[i];
  }
  if (!dropped || size == 0) return 0;
  for (double& value : *ours) value *= cross / size;
  return cross / size;
}

// x with a [rows, n] x = b in the sense of least squares, by the normal equations; empty when they
// are singular.
Numbers LeastSquares(const Numbers& a, const Numbers& b, int64_t n) {
  const int64_t rows = static_cast<int64_t>(b.size());
  Numbers m(n * (n + 1));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) m[i * (n + 1) + j] += a[r * n + i] * a[r * n + j];
      m[i * (n + 1) + n] += a[r * n + i] * b[r];
    }
  }
  for (int64_t pivot = 0; pivot < n; ++pivot) {
    int64_t best = pivot;
    for (int64_t r = pivot; r < n; ++r) {
      if (std::abs(m[r * (n + 1) + pivot]) > std::abs(m[best * (n + 1) + pivot])) best = r;
    }
    if (std::abs(m[best * (n + 1) + pivot]) < 1e-12) return {};
    std::swap_ranges(m.begin() + best * (n + 1), m.begin() + (best + 1) * (n + 1),
                     m.begin() + pivot * (n + 1));
    for (int64_t r = 0; r < n; ++r) {
      if (r == pivot) continue;
      const double factor = m[r * (n + 1) + pivot] / m[pivot * (n + 1) + pivot];
      for (int64_t j = pivot; j <= n; ++j) m[r * (n + 1) + j] -= factor * m[pivot * (n + 1) + j];
    }
  }
  Numbers x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = m[i * (n + 1) + n] / m[i * (n + 1) + i];
  return x;
}

double Square(const Numbers& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// One row of y: what every weight of its heads contributes to it, and which of them were kept.
struct Row {
  Numbers a;                // [C, n]
  Numbers target;           // [C], without the bias
  std::vector<bool> kept;   // [n]
  std::vector<bool> shows;  // [n]: the contribution rises above the noise

  int64_t n() const { return static_cast<int64_t>(kept.size()); }
  double Entry(size_t c, int64_t i) const { return a[c * kept.size() + i]; }
  // What the kept ones make, once.
  Numbers Sum() const {
    Numbers sum(target.size());
    for (size_t c = 0; c < sum.size(); ++c) {
      for (int64_t i = 0; i < n(); ++i) sum[c] += kept[i] ? Entry(c, i) : 0;
    }
    return sum;
  }
};

class Solver {
 public:
  Solver(const AttentionDump& dump, const AttentionRecipe& recipe, double floor,
         AttentionReplay* replay)
      : dump_(dump), case_(dump.attention), recipe_(recipe), floor_(floor) {
    pattern_ = *replay->Tensor(recipe, Stage::kPattern);
    v_ = replay->ValuesByHead(recipe);
  }

  // From the rows of y that have more channels than weights.
  std::optional<Explanation> Solve() {
    int64_t positions = 0;
    for (; positions < case_.T && 5 * WeightsOf(positions) <= 4 * case_.proj.out; ++positions) {
      for (int64_t b = 0; b < case_.B; ++b) {
        rows_.push_back(RowOf(b, positions));
        if (!(LeastError(rows_.back(), gains_.back()) <= floor_)) return std::nullopt;
      }
    }
    if (rows_.empty()) return std::nullopt;
    double gain = 0, best = std::numeric_limits<double>::infinity();
    std::vector<Row> rows = rows_;
    for (double p = 0.02; p <= kMostDropped; p += 0.02) {
      rows_ = rows;
      double fitted = 1 / (1 - p);
      const double error = Decide(&fitted);
      if (error >= best) continue;
      best = error;
      gain = fitted;
      decided_ = rows_;
    }
    if (!(best <= floor_) || gain < kLeastGain || !IsLikely(1 - 1 / gain)) return std::nullopt;
    return Named(best, gain,
                 positions == 1
                     ? "of the weights, solved for row 0"
                     : fmt::format("of the weights, solved for rows 0 to {}", positions - 1));
  }

 private:
  // As many must be lost as chance loses of them, and one at least.
  bool IsLikely(double p) const {
    double count = 0, lost = 0;
    for (const Row& row : decided_) {
      for (int64_t i = 0; i < row.n(); ++i) {
        count += row.shows[i];
        lost += row.shows[i] && !row.kept[i];
      }
    }
    return lost > 0 && std::abs(lost - p * count) <= 4 * std::sqrt(p * (1 - p) * count);
  }

  // The most weights that are not 0 behind one y[b, t].
  int64_t WeightsOf(int64_t t) const {
    int64_t most = 0;
    for (int64_t b = 0; b < case_.B; ++b) {
      most = std::max(most, static_cast<int64_t>(Visible(b, t).size()));
    }
    return most;
  }

  // Head and key of each of them.
  std::vector<std::pair<int64_t, int64_t>> Visible(int64_t b, int64_t t) const {
    const int64_t H = case_.settings.n_head, S = KeysOf();
    std::vector<std::pair<int64_t, int64_t>> visible;
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t j = 0; j < S; ++j) {
        if (Weight(b, h, t, j) != 0) visible.emplace_back(h, j);
      }
    }
    return visible;
  }

  int64_t KeysOf() const {
    return static_cast<int64_t>(v_.size()) /
           (case_.B * case_.settings.n_head * case_.settings.head_dim);
  }
  double Weight(int64_t b, int64_t h, int64_t t, int64_t j) const {
    return pattern_[((b * case_.settings.n_head + h) * case_.T + t) * KeysOf() + j];
  }

  // Relative error of y[b, t] with a gain of its own for every weight; infinite without a solution.
  static double LeastError(const Row& row, const Numbers& gains) {
    if (gains.empty()) return std::numeric_limits<double>::infinity();
    Numbers left = row.target;
    for (size_t c = 0; c < left.size(); ++c) {
      for (int64_t i = 0; i < row.n(); ++i) left[c] -= row.Entry(c, i) * gains[i];
    }
    return std::sqrt(Square(left) / Square(row.target));
  }

  // Contributions to y[b, t] with the gain of every one by least squares, to begin with.
  Row RowOf(int64_t b, int64_t t) {
    const int64_t H = case_.settings.n_head, D = case_.settings.head_dim, S = KeysOf();
    const std::vector<std::pair<int64_t, int64_t>> visible = Visible(b, t);
    const int64_t C = case_.proj.out, n = static_cast<int64_t>(visible.size());
    const bool bias = (recipe_.project.without_bias & kOProj) == 0;
    Row row{Numbers(C * n), Numbers(C), std::vector<bool>(n, true), std::vector<bool>(n)};
    for (int64_t c = 0; c < C; ++c) {
      const int64_t at = (b * case_.T + t) * C + c;
      row.target[c] = dump_.theirs.back().values[at] - (bias ? case_.proj.bias[c] : 0);
      if (recipe_.combine.plus_input) row.target[c] -= case_.x[at];
      for (int64_t i = 0; i < n; ++i) {
        const auto [h, j] = visible[i];
        const double* v = &v_[((b * H + h) * S + j) * D];
        const double* to = &case_.proj.weight[(c * H + h) * D];
        row.a[c * n + i] = Weight(b, h, t, j) * std::inner_product(v, v + D, to, 0.0);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      double size = 0;
      for (int64_t c = 0; c < C; ++c) size += row.Entry(c, i) * row.Entry(c, i);
      row.shows[i] = size > 100 * floor_ * floor_ * Square(row.target);
    }
    gains_.push_back(LeastSquares(row.a, row.target, n));
    return row;
  }

  // Which weights were kept if those that were have this gain, which is then fitted; the relative
  // error that is left.
  double Decide(double* gain) {
    double along = 0, size = 0;
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      for (int64_t i = 0; i < row.n() && !gains_[r].empty(); ++i) {
        row.kept[i] = gains_[r][i] > *gain / 2;
      }
      while (FlipOne(*gain, &row)) {
      }
      const Numbers sum = row.Sum();
      for (size_t c = 0; c < sum.size(); ++c) along += row.target[c] * sum[c];
      size += Square(sum);
    }
    if (size > 0) *gain = along / size;
    double error = 0, all = 0;
    for (const Row& row : rows_) {
      Numbers left = row.Sum();
      for (size_t c = 0; c < left.size(); ++c) left[c] = row.target[c] - *gain * left[c];
      error += Square(left);
      all += Square(row.target);
    }
    return all == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / all);
  }

  // Noise may put a weight on the wrong side: turns the one that helps most; false when none does.
  static bool FlipOne(double gain, Row* row) {
    Numbers left = row->Sum();
    for (size_t c = 0; c < left.size(); ++c) left[c] = row->target[c] - gain * left[c];
    double best = Square(left) * (1 - 1e-9);
    int64_t flip = -1;
    for (int64_t i = 0; i < row->n(); ++i) {
      const double step = row->kept[i] ? gain : -gain;
      double error = 0;
      for (size_t c = 0; c < left.size(); ++c) {
        const double l = left[c] + step * row->Entry(c, i);
        error += l * l;
      }
      if (error >= best) continue;
      best = error;
      flip = i;
    }
    if (flip >= 0) row->kept[flip] = !row->kept[flip];
    return flip >= 0;
  }

  const AttentionDump& dump_;
  const AttentionCase& case_;
  const AttentionRecipe& recipe_;
  const double floor_;
  Numbers pattern_, v_;
  std::vector<Numbers> gains_;  // by row
  std::vector<Row> rows_, decided_;
};

const TheirTensor* Given(const AttentionDump& dump, Stage stage) {
  const auto found = std::ranges::find(dump.theirs, stage, &TheirTensor::stage);
  return found == dump.theirs.end() ? nullptr : &*found;
}

}  // namespace

std::optional<Explanation> FindLiveDropout(const AttentionDump& dump, const AttentionRecipe& recipe,
                                           double floor, AttentionReplay* replay) {
  const TheirTensor& last = dump.theirs.back();
  if (const TheirTensor* pattern = Given(dump, Stage::kPattern)) {
    Numbers ours = *replay->Tensor(recipe, Stage::kPattern);
    const double gain = DropAlike(pattern->values, &ours);
    const double residual = Residual(pattern->values, ours);
    if (gain < kLeastGain || residual > floor) return std::nullopt;
    AttentionReplay with_theirs(dump.attention, dump.context);
    with_theirs.AssumePattern(recipe, std::move(ours));
    const double behind = Residual(last.values, *with_theirs.Tensor(recipe, last.stage));
    if (behind > floor) return std::nullopt;
    return Named(std::max(residual, behind), gain, "of the weights");
  }
  Numbers ours = *replay->Tensor(recipe, last.stage);
  const double gain = DropAlike(last.values, &ours);
  const double residual = Residual(last.values, ours);
  if (gain >= kLeastGain && residual <= floor) return Named(residual, gain, "of " + last.name);
  const bool solvable = last.stage == Stage::kY && !recipe.project.batch_as_time &&
                        (recipe.project.transposed & kOProj) == 0 && !recipe.combine.transposed &&
                        recipe.combine.merge == MergeKind::kRight;
  return solvable ? Solver(dump, recipe, floor, replay).Solve() : std::nullopt;
}

}  // namespace heed
