// What a diagnosis of somebody else's numbers says: whether they are right, and if not, which known
// fault reproduces them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace heed {

enum class DiagnosisVerdict { kCorrect, kFault, kAmbiguous, kUnexplained };
std::span<const EnumName<DiagnosisVerdict>> EnumNames(DiagnosisVerdict);

// One entry of the catalogue.
struct FaultKind {
  std::string_view id;
  std::string_view what;    // one sentence: what is wrong
  std::string_view repair;  // in words
  std::string_view torch;   // the right line in PyTorch
  std::string_view cpp;     // the right line in C++
  std::string_view test;    // what separates it: what stays equal, what differs
};

// One way to arrive at their numbers.
struct Explanation {
  std::vector<std::string> faults;  // identifiers; none: the correct formula
  double residual = 0;              // ||theirs - ours|| / ||ours||
  std::string detail;               // fitted values, "theta 500000"; may be empty
};

struct FirstDifference {
  std::string tensor;
  std::vector<int64_t> index;
};

struct Diagnosis {
  DiagnosisVerdict verdict = DiagnosisVerdict::kUnexplained;
  std::vector<Explanation> explanations;           // best first, all within the noise of the best
  std::map<std::string, std::string> conventions;  // what was not stated and found by trying
  double reference_residual = 0;                   // of the correct formula, best convention
  double noise_floor = 0;                          // of the storage of the numbers that were given
  std::optional<FirstDifference> first_difference;
  std::vector<int64_t> equal_rows;   // positions t whose outputs agree in every batch row
  std::vector<std::string> ask_for;  // tensors that would separate what is left
  std::vector<std::string> seen;     // sentences: the structure of the error, what it rules out
};

}  // namespace heed
