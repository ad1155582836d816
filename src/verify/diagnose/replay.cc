#include "verify/diagnose/replay.h"

#include <limits>

#include "tensor/convert.h"

namespace heed {
namespace {

// By so many elements more, and so many times more, must a formula miss their bits to be set aside:
// the true one misses a bit now and then, where a number lies at the middle of two.
constexpr int64_t kFewBits = 2;
constexpr int64_t kTimesMore = 20;
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

int64_t WrongBits(const Observed& theirs, const std::vector<double>& ours) {
  const std::vector<double> rounded = Rounded(theirs.dtype, ours);
  int64_t wrong = 0;
  for (size_t i = 0; i < rounded.size(); ++i) {
    const double a = theirs.values[i], b = rounded[i];
    const bool equal = a == b || (std::isnan(a) && std::isnan(b)) ||
                       std::abs(a - b) <= kDoubleNoise * (std::abs(a) + std::abs(b));
    wrong += equal ? 0 : 1;
  }
  return wrong;
}

// Axes of a tensor as [B, T, C]: the last two, and all before them in one.
struct Axes {
  int64_t B = 1, T = 1, C = 1;
};
Axes AxesOf(const std::vector<int64_t>& shape) {
  Axes axes;
  const size_t rank = shape.size();
  if (rank >= 1) axes.C = shape[rank - 1];
  if (rank >= 2) axes.T = shape[rank - 2];
  for (size_t axis = 0; axis + 2 < rank; ++axis) axes.B *= shape[axis];
  return axes;
}

}  // namespace

Agreement Agree(const std::vector<Observed>& theirs, const Outputs& ours) {
  Agreement agreement;
  for (size_t i = 0; i < theirs.size(); ++i) {
    agreement.residual = std::max(agreement.residual, Residual(theirs[i].values, ours[i]));
    agreement.wrong_bits += WrongBits(theirs[i], ours[i]);
  }
  return agreement;
}

bool SameNumbers(const Outputs& a, const Outputs& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(Residual(a[i], b[i]) <= kDoubleNoise)) return false;
  }
  return true;
}

Diagnosis ConcludeReplays(const std::vector<Tried>& tried, const NoiseFloor& floor) {
  double reference = std::numeric_limits<double>::infinity();
  int64_t fewest = std::numeric_limits<int64_t>::max() / (2 * kTimesMore);
  for (const Tried& each : tried) {
    const double residual = each.explanation.residual;
    if (each.explanation.faults.empty()) reference = std::min(reference, residual);
    if (residual <= floor.arithmetic) fewest = std::min(fewest, each.wrong_bits);
  }
  std::vector<Explanation> kept;
  for (const Tried& each : tried) {
    if (each.wrong_bits >= kFewBits + kTimesMore * fewest) continue;
    kept.push_back(each.explanation);
    // Equal numbers keep the catalogue's order.
    for (const Explanation& earlier : kept) {
      const double apart = std::abs(earlier.residual - kept.back().residual);
      if (std::isfinite(apart) && apart <= kDoubleNoise + 1e-6 * earlier.residual) {
        kept.back().residual = earlier.residual;
        break;
      }
    }
  }
  Diagnosis diagnosis = Conclude(std::move(kept), floor);
  diagnosis.reference_residual = reference;
  return diagnosis;
}

void Locate(const std::vector<Observed>& theirs, const Outputs& right, size_t rows,
            Diagnosis* diagnosis) {
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
    if (i == rows && theirs[i].shape.size() >= 2) {
      const Axes axes = AxesOf(theirs[i].shape);
      diagnosis->equal_rows =
          EqualRows(theirs[i].values, right[i], axes.B, axes.T, axes.C, std::max(noise, 1e-12));
    }
  }
}

double Refine(double low, double high, double enough, const std::function<double(double)>& f) {
  constexpr int kSections = 40, kFew = 10;
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double a = high - ratio * (high - low), b = low + ratio * (high - low);
  double at_a = f(a), at_b = f(b);
  for (int i = 0; i < kSections; ++i) {
    if (at_a < at_b) {
      high = b, b = a, at_b = at_a;
      a = high - ratio * (high - low);
      at_a = f(a);
    } else {
      low = a, a = b, at_a = at_b;
      b = low + ratio * (high - low);
      at_b = f(b);
    }
    if (i == kFew && std::min(at_a, at_b) > enough) break;
  }
  return (low + high) / 2;
}

}  // namespace heed
