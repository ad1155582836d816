#include "verify/diagnose/attention_dropout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

class Solver {
 public:
  Solver(const AttentionDump& dump, const AttentionRecipe& right, double floor)
      : dump_(dump), case_(dump.attention), floor_(floor) {
    AttentionReplay replay(case_);
    pattern_ = *replay.Tensor(right, Stage::kPattern);
    v_ = *replay.Tensor(right, Stage::kV);
  }

  // From the rows of y that have more channels than weights.
  std::optional<Explanation> Solve() {
    const int64_t H = case_.settings.n_head, C = case_.proj.out;
    int64_t rows = 0;
    for (; rows < case_.T && 5 * H * (rows + 1) <= 4 * C; ++rows) {
      for (int64_t b = 0; b < case_.B; ++b) {
        if (!SolveRow(b, rows)) return std::nullopt;
      }
    }
    if (gains_.size() < 4) return std::nullopt;
    const double gain = *std::ranges::max_element(gains_);
    const auto kept = [&](double g) { return std::abs(g - gain) <= Tolerance() * gain; };
    const auto dropped = [&](double g) { return std::abs(g) <= Tolerance() * gain; };
    const bool two = std::ranges::all_of(gains_, [&](double g) { return kept(g) || dropped(g); });
    const auto lost = static_cast<double>(std::ranges::count_if(gains_, dropped));
    const auto count = static_cast<double>(gains_.size());
    // As many must be lost as chance loses of them; a gain that nobody uses is a bad solution.
    const double p = 1 - 1 / gain, spread = std::sqrt(p * (1 - p) * count);
    const bool likely = std::abs(lost - p * count) <= 4 * spread && p <= kMostDropped;
    if (!two || lost == 0 || !likely || gain < kLeastGain) return std::nullopt;
    return Named(std::sqrt(error_ / size_), gain,
                 rows == 1 ? "of the weights, solved for row 0"
                           : fmt::format("of the weights, solved for rows 0 to {}", rows - 1));
  }

 private:
  double Tolerance() const { return std::clamp(100 * floor_, 1e-3, 0.1); }

  // Solves for the gain of every weight behind y[b, t].
  bool SolveRow(int64_t b, int64_t t) {
    const int64_t H = case_.settings.n_head, D = case_.settings.head_dim, T = case_.T;
    const int64_t group = H / case_.settings.n_kv_head, C = case_.proj.out, n = H * (t + 1);
    Numbers a(C * n), target(C);
    for (int64_t c = 0; c < C; ++c) {
      target[c] = dump_.theirs.back().values[(b * T + t) * C + c] - case_.proj.bias[c];
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t j = 0; j <= t; ++j) {
          const double* v = &v_[((b * (H / group) + h / group) * T + j) * D];
          double sum = 0;
          for (int64_t d = 0; d < D; ++d) sum += case_.proj.weight[(c * H + h) * D + d] * v[d];
          a[c * n + h * (t + 1) + j] = sum * pattern_[((b * H + h) * T + t) * T + j];
        }
      }
    }
    const Numbers gains = LeastSquares(a, target, n);
    if (gains.empty()) return false;
    double error = 0, size = 0;
    for (int64_t c = 0; c < C; ++c) {
      double sum = -target[c];
      for (int64_t i = 0; i < n; ++i) sum += a[c * n + i] * gains[i];
      error += sum * sum;
      size += target[c] * target[c];
    }
    if (error > floor_ * floor_ * size) return false;
    error_ += error;
    size_ += size;
    gains_.insert(gains_.end(), gains.begin(), gains.end());
    return true;
  }

  const AttentionDump& dump_;
  const AttentionCase& case_;
  const double floor_;
  Numbers pattern_, v_, gains_;
  double error_ = 0, size_ = 0;
};

const TheirTensor* Given(const AttentionDump& dump, Stage stage) {
  const auto found = std::ranges::find(dump.theirs, stage, &TheirTensor::stage);
  return found == dump.theirs.end() ? nullptr : &*found;
}

}  // namespace

std::optional<Explanation> FindLiveDropout(const AttentionDump& dump, const AttentionRecipe& right,
                                           double floor) {
  AttentionReplay replay(dump.attention);
  const TheirTensor& last = dump.theirs.back();
  if (const TheirTensor* pattern = Given(dump, Stage::kPattern)) {
    Numbers ours = *replay.Tensor(right, Stage::kPattern);
    const double gain = DropAlike(pattern->values, &ours);
    const double residual = Residual(pattern->values, ours);
    if (gain < kLeastGain || residual > floor) return std::nullopt;
    AttentionReplay with_theirs(dump.attention);
    with_theirs.AssumePattern(right, std::move(ours));
    const double behind = Residual(last.values, *with_theirs.Tensor(right, last.stage));
    if (behind > floor) return std::nullopt;
    return Named(std::max(residual, behind), gain, "of the weights");
  }
  Numbers ours = *replay.Tensor(right, last.stage);
  const double gain = DropAlike(last.values, &ours);
  const double residual = Residual(last.values, ours);
  if (gain >= kLeastGain && residual <= floor) return Named(residual, gain, "of " + last.name);
  const bool solvable = dump.attention.P == 0 && last.stage == Stage::kY;
  return solvable ? Solver(dump, right, floor).Solve() : std::nullopt;
}

}  // namespace heed
