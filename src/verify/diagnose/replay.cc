#include "verify/diagnose/replay.h"

#include <fmt/format.h>

#include <limits>

#include "tensor/convert.h"

namespace heed {
namespace {

// The true formula misses a bit now and then, where a number lies at the middle of two.
constexpr double kFewBits = 0.05;
// Below it double's own order of summation decides.
constexpr double kDoubleNoise = 1e-12;

std::vector<double> Rounded(DType dtype, const std::vector<double>& values) {
  if (dtype == DType::kF64 || !IsFloat(dtype)) return values;
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  std::vector<double> rounded(values.size());
  Encode(dtype, values.data(), values.size(), bytes.data());
  Decode(dtype, bytes.data(), values.size(), rounded.data());
  return rounded;
}

// Axes of a tensor as [B, T, C]: the last two, and all before them in one.
struct Rows {
  int64_t B = 1, T = 1, C = 1;
};
Rows RowsOf(const std::vector<int64_t>& shape) {
  Rows rows;
  const size_t rank = shape.size();
  if (rank >= 1) rows.C = shape[rank - 1];
  if (rank >= 2) rows.T = shape[rank - 2];
  for (size_t axis = 0; axis + 2 < rank; ++axis) rows.B *= shape[axis];
  return rows;
}

}  // namespace

Agreement Agree(const std::vector<Observed>& theirs, const Outputs& ours) {
  Agreement worst;
  for (size_t i = 0; i < theirs.size(); ++i) {
    worst.residual = std::max(worst.residual, Residual(theirs[i].values, ours[i]));
    worst.rounded =
        std::max(worst.rounded, Residual(theirs[i].values, Rounded(theirs[i].dtype, ours[i])));
  }
  return worst;
}

bool SameNumbers(const Outputs& a, const Outputs& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(Residual(a[i], b[i]) <= kDoubleNoise)) return false;
  }
  return true;
}

Diagnosis ConcludeReplays(const std::vector<Tried>& tried, const NoiseFloor& floor) {
  double reference = std::numeric_limits<double>::infinity(), best_bits = reference;
  for (const Tried& each : tried) {
    const double residual = each.explanation.residual;
    if (each.explanation.faults.empty()) reference = std::min(reference, residual);
    if (residual <= floor.arithmetic) best_bits = std::min(best_bits, each.rounded);
  }
  std::vector<Explanation> kept;
  for (const Tried& each : tried) {
    if (each.rounded > kDoubleNoise && best_bits <= kFewBits * each.rounded) continue;
    kept.push_back(each.explanation);
    // Equal numbers keep the catalogue's order.
    for (const Explanation& earlier : kept) {
      const double apart = std::abs(earlier.residual - kept.back().residual);
      if (apart <= kDoubleNoise + 1e-6 * earlier.residual) {
        kept.back().residual = earlier.residual;
        break;
      }
    }
  }
  Diagnosis diagnosis = Conclude(std::move(kept), floor);
  diagnosis.reference_residual = reference;
  return diagnosis;
}

void Locate(const std::vector<Observed>& theirs, const Outputs& right, Diagnosis* diagnosis) {
  const bool explained = !diagnosis->explanations.empty();
  for (size_t i = 0; i < theirs.size(); ++i) {
    // Rounding of one row is a few times that of the whole.
    const double noise = explained ? std::max(4 * diagnosis->explanations.front().residual,
                                              8 * UnitRoundoff(theirs[i].dtype))
                                   : diagnosis->noise_floor;
    if (diagnosis->verdict != DiagnosisVerdict::kCorrect && !diagnosis->first_difference) {
      const auto index =
          FirstDifferenceOf(theirs[i].values, right[i], theirs[i].shape, std::max(noise, 1e-12));
      if (index) diagnosis->first_difference = FirstDifference{theirs[i].name, *index};
    }
    if (i == 0 && theirs[i].shape.size() >= 2) {
      const Rows rows = RowsOf(theirs[i].shape);
      diagnosis->equal_rows =
          EqualRows(theirs[i].values, right[i], rows.B, rows.T, rows.C, std::max(noise, 1e-12));
    }
  }
}

std::string FittedText(std::string_view name, double value) {
  return fmt::format("{} {:.3g}", name, value);
}

}  // namespace heed
