// One way to compute the parts of a block besides attention: norms and activations, each with the
// choices that are made in it. The defaults are right; a fault is another choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace heed {

enum class Variance : uint8_t { kPopulation, kSample, kCancelling };
enum class EpsPlace : uint8_t { kInside, kOutside, kFloor };
enum class NormCast : uint8_t { kNone, kBeforeGain, kBeforeSquare };

struct NormChoice {
  bool rms = false;
  double eps = 1e-5;
  Variance variance = Variance::kPopulation;
  EpsPlace place = EpsPlace::kInside;
  double gain_offset = 0;
  bool gain = true, bias = true;
  NormCast cast = NormCast::kNone;
  DType cast_type = DType::kBF16;
};

// The nearest number of a float dtype.
double RoundTo(DType dtype, double value);

// Mean and reciprocal deviation of n numbers, `at(i)` each.
struct Moments {
  double mean = 0, rstd = 0;
};
template <class At>
Moments MomentsOf(const NormChoice& choice, int64_t n, const At& at) {
  Moments moments;
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) moments.mean += at(i);
  moments.mean = choice.rms ? 0 : moments.mean / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double centred = at(i) - moments.mean;
    const double square = centred * centred;
    squares += choice.cast == NormCast::kBeforeSquare ? RoundTo(choice.cast_type, square) : square;
  }
  const int64_t divisor = choice.variance == Variance::kSample ? n - 1 : n;
  const double variance = squares / static_cast<double>(divisor);
  if (choice.place == EpsPlace::kOutside) {
    moments.rstd = 1 / (std::sqrt(variance) + choice.eps);
  } else if (choice.place == EpsPlace::kFloor) {
    moments.rstd = 1 / std::sqrt(std::max(variance, choice.eps));
  } else {
    moments.rstd = 1 / std::sqrt(variance + choice.eps);
  }
  return moments;
}

// One channel's result. `bias` is 0 where there is none.
double NormApply(const NormChoice& choice, const Moments& moments, double x, double gain,
                 double bias);
// y like x [rows, C]; `bias` [C] or empty.
std::vector<double> NormRows(const NormChoice& choice, const std::vector<double>& x,
                             const std::vector<double>& gain, const std::vector<double>& bias);

enum class Activation : uint8_t {
  kGeluTanh,
  kGeluErf,
  kGeluSigmoid,      // x sigmoid(1.702 x)
  kGeluNoFactor,     // the factor x forgotten
  kGeluErfNoFactor,  // the same in the form by erf
  kRelu,
  kSilu,
  kSigmoid,
  kIdentity,
};
double Activate(Activation activation, double x);

enum class Gate : uint8_t {
  kNone,
  kGate,     // act(gate) up
  kUp,       // act(up) gate
  kProduct,  // act(gate up)
  kGateAlone,
  kUpAlone,
};
double Hidden(Gate gate, Activation activation, double up, double gated);

}  // namespace heed
