// From residuals to a verdict: what every kind of dump has in common.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/noise.h"

namespace heed {

// |a - b|; 0 where both are the same, also when neither is finite, infinite where one alone is not.
double Distance(double a, double b);

// ‖theirs − ours‖ / ‖ours‖ over all elements. Where both are NaN, or the same infinity, they agree;
// where one alone is not finite the residual is infinite.
double Residual(std::span<const double> theirs, std::span<const double> ours);

// Of those that are finite; 0 for none.
double EuclideanNorm(std::span<const double> values);
double RootMeanSquare(std::span<const double> values);

// What a part of theirs, of which the whole is `size` long, leaves of Residual at the least;
// infinite where the parts are of different lengths.
double LeastResidual(std::span<const double> theirs, std::span<const double> ours, double size);

// What `ours` must be multiplied by to become theirs to `floor`; nothing where no factor does.
std::optional<double> FactorBetween(std::span<const double> theirs, std::span<const double> ours,
                                    double floor);

// Whether `residual` is as good as `best`: no more than chance apart for numbers of this storage.
bool WithinNoiseOf(double best, double residual, const NoiseFloor& floor);

// The verdict on all that was tried, the correct formula (no faults) among them.
// - correct: the correct formula stays below `arithmetic`, and nothing reproduces theirs clearly
//   better where it misses `storage`;
// - fault, ambiguous: explanations below `arithmetic`, every one within the noise of the best; a
//   superset of another one's faults is left out;
// - unexplained: none; `explanations` is empty.
// Fills verdict, explanations, reference_residual and noise_floor.
Diagnosis Conclude(std::vector<Explanation> tried, const NoiseFloor& floor);

// The index [i, j, ..] of element `at` of a row-major array.
std::vector<int64_t> IndexOf(int64_t at, std::span<const int64_t> shape);

// Where a tensor of `shape` first differs by more than `floor` times its root mean square.
std::optional<std::vector<int64_t>> FirstDifferenceOf(std::span<const double> theirs,
                                                      std::span<const double> ours,
                                                      std::span<const int64_t> shape, double floor);

// Of tensors [B, T, C]: the positions t whose rows agree to `floor` in every batch row.
std::vector<int64_t> EqualRows(std::span<const double> theirs, std::span<const double> ours,
                               int64_t B, int64_t T, int64_t C, double floor);

}  // namespace heed
