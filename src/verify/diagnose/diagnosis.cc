#include "verify/diagnose/diagnosis.h"

namespace heed {

std::span<const EnumName<DiagnosisVerdict>> EnumNames(DiagnosisVerdict) {
  static constexpr EnumName<DiagnosisVerdict> kNames[] = {
      {DiagnosisVerdict::kCorrect, "correct"},
      {DiagnosisVerdict::kFault, "fault"},
      {DiagnosisVerdict::kAmbiguous, "ambiguous"},
      {DiagnosisVerdict::kUnexplained, "unexplained"}};
  return kNames;
}

}  // namespace heed
