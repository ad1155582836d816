// Dumps with a fault planted by plain code, and what the diagnosis must say of them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "support/tensor_set.h"
#include "tensor/convert.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// The numbers as a file of this dtype gives them back.
inline std::vector<double> AsStored(DType dtype, std::vector<double> values) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  Encode(dtype, values.data(), values.size(), bytes.data());
  Decode(dtype, bytes.data(), values.size(), values.data());
  return values;
}

// Inputs are rounded into the storage before anything is computed with them.
class Draw {
 public:
  Draw(uint32_t seed, DType dtype) : engine_(seed), dtype_(dtype) {}

  std::vector<double> Normal(size_t n, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<double> values(n);
    for (double& value : values) value = normal(engine_);
    return AsStored(dtype_, std::move(values));
  }
  std::vector<double> Ids(size_t n, int64_t below) {
    std::uniform_int_distribution<int64_t> uniform(0, below - 1);
    std::vector<double> values(n);
    for (double& value : values) value = static_cast<double>(uniform(engine_));
    return values;
  }

 private:
  std::mt19937 engine_;
  DType dtype_;
};

// "norm_unbiased", or the verdict where it names no fault: "correct", "unexplained", and
// "ambiguous: a | b" with every explanation.
inline std::string Finding(const Result<Diagnosis>& diagnosis) {
  if (!diagnosis) return "error: " + diagnosis.error().Message();
  std::string faults;
  for (const Explanation& explanation : diagnosis->explanations) {
    if (!faults.empty()) faults += " | ";
    for (size_t i = 0; i < explanation.faults.size(); ++i) {
      faults += (i == 0 ? "" : " + ") + explanation.faults[i];
    }
  }
  switch (diagnosis->verdict) {
    case DiagnosisVerdict::kCorrect:
      return "correct";
    case DiagnosisVerdict::kUnexplained:
      return "unexplained";
    case DiagnosisVerdict::kAmbiguous:
      return "ambiguous: " + faults;
    case DiagnosisVerdict::kFault:
      break;
  }
  return faults;
}

}  // namespace heed
