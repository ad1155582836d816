#include "verify/diagnose/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kCoarse = 1e-5;  // between the noise of storage in 32 and in 16 bits

double Square(double x) { return std::isfinite(x) ? x * x : 0; }

double SumOfSquares(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += Square(value);
  return sum;
}

bool Contains(const std::vector<std::string>& faults, const std::string& fault) {
  return std::ranges::find(faults, fault) != faults.end();
}

// Whether `more` has every fault of `less` and others besides.
bool IsSuperset(const std::vector<std::string>& more, const std::vector<std::string>& less) {
  return more.size() > less.size() &&
         std::ranges::all_of(less, [&](const std::string& fault) { return Contains(more, fault); });
}

}  // namespace

double Distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::abs(a - b);
  return std::isfinite(distance) ? distance : kInfinity;
}

double EuclideanNorm(std::span<const double> values) { return std::sqrt(SumOfSquares(values)); }

double RootMeanSquare(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::sqrt(SumOfSquares(values) / static_cast<double>(values.size()));
}

double LeastResidual(std::span<const double> theirs, std::span<const double> ours, double size) {
  if (theirs.size() != ours.size()) return kInfinity;
  double squares = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double d = Distance(theirs[i], ours[i]);
    squares += d * d;
  }
  // ‖theirs − ours‖ is at least `apart`, and ‖ours‖ at most ‖theirs‖ and it.
  const double apart = std::sqrt(squares);
  return std::isfinite(apart) ? apart / (size + apart) : apart;
}

double Residual(std::span<const double> theirs, std::span<const double> ours) {
  if (theirs.size() != ours.size()) return kInfinity;
  double difference = 0, size = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double d = Distance(theirs[i], ours[i]);
    difference += d * d;
    size += Square(ours[i]);
  }
  if (difference == 0) return 0;
  return size == 0 ? kInfinity : std::sqrt(difference / size);
}

std::optional<double> FactorBetween(std::span<const double> theirs, std::span<const double> ours,
                                    double floor) {
  if (theirs.size() != ours.size()) return std::nullopt;
  const double cross = std::inner_product(ours.begin(), ours.end(), theirs.begin(), 0.0);
  const double size = std::inner_product(ours.begin(), ours.end(), ours.begin(), 0.0);
  const double factor = cross / size;
  if (factor == 0 || !std::isfinite(factor)) return std::nullopt;
  std::vector<double> scaled(ours.begin(), ours.end());
  for (double& value : scaled) value *= factor;
  if (!(Residual(theirs, scaled) <= floor)) return std::nullopt;
  return factor;
}

bool WithinNoiseOf(double best, double residual, const NoiseFloor& floor) {
  return residual <= std::max(1.5 * best, best + std::min(floor.storage, floor.tie));
}

Diagnosis Conclude(std::vector<Explanation> tried, const NoiseFloor& floor) {
  Diagnosis diagnosis;
  diagnosis.noise_floor = floor.arithmetic;
  diagnosis.reference_residual = kInfinity;
  std::ranges::stable_sort(tried, [](const Explanation& a, const Explanation& b) {
    return std::pair(a.faults.size(), a.residual) < std::pair(b.faults.size(), b.residual);
  });
  double best = kInfinity;
  for (const Explanation& explanation : tried) {
    best = std::min(best, explanation.residual);
    if (!explanation.faults.empty()) continue;
    diagnosis.reference_residual = std::min(diagnosis.reference_residual, explanation.residual);
  }
  const double reference = diagnosis.reference_residual;
  // The floor is an estimate, and the coarser one where everything was computed in 16 bits and
  // scores are sharp: there one of many wrong formulas comes nearer by chance.
  const bool coarse = floor.storage > kCoarse;
  const bool within =
      reference <= 1.1 * floor.arithmetic && (reference <= floor.storage || reference <= 8 * best);
  const bool as_near = coarse && reference <= 2.5 * best;
  if (within || (as_near && reference <= 2 * floor.arithmetic)) {
    diagnosis.verdict = DiagnosisVerdict::kCorrect;
    diagnosis.explanations = {{{}, reference, ""}};
    return diagnosis;
  }
  if (as_near || !(best <= floor.arithmetic)) return diagnosis;
  for (Explanation& explanation : tried) {
    if (explanation.faults.empty() || !WithinNoiseOf(best, explanation.residual, floor)) continue;
    const bool covered = std::ranges::any_of(diagnosis.explanations, [&](const Explanation& other) {
      return other.faults == explanation.faults || IsSuperset(explanation.faults, other.faults);
    });
    if (!covered) diagnosis.explanations.push_back(std::move(explanation));
  }
  diagnosis.verdict =
      diagnosis.explanations.size() == 1 ? DiagnosisVerdict::kFault : DiagnosisVerdict::kAmbiguous;
  return diagnosis;
}

std::vector<int64_t> IndexOf(int64_t at, std::span<const int64_t> shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = at % shape[axis];
    at /= shape[axis];
  }
  return index;
}

std::optional<std::vector<int64_t>> FirstDifferenceOf(std::span<const double> theirs,
                                                      std::span<const double> ours,
                                                      std::span<const int64_t> shape,
                                                      double floor) {
  const double bound = floor * RootMeanSquare(ours);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!(Distance(theirs[i], ours[i]) > bound)) continue;
    return IndexOf(static_cast<int64_t>(i), shape);
  }
  return std::nullopt;
}

std::vector<int64_t> EqualRows(std::span<const double> theirs, std::span<const double> ours,
                               int64_t B, int64_t T, int64_t C, double floor) {
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < T; ++t) {
    bool equal = true;
    for (int64_t b = 0; b < B && equal; ++b) {
      const int64_t at = (b * T + t) * C;
      equal = Residual(theirs.subspan(at, C), ours.subspan(at, C)) <= floor;
    }
    if (equal) rows.push_back(t);
  }
  return rows;
}

}  // namespace heed
