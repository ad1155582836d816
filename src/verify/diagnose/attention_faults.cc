#include "verify/diagnose/attention_faults.h"

#include "verify/diagnose/attention_fault_lists.h"

namespace heed {

std::span<const AttentionFault> AttentionFaultTable() {
  static const std::vector<AttentionFault> kTable = [] {
    std::vector<AttentionFault> table;
    for (const std::span<const AttentionFault> faults :
         {attention_faults::OfCache(), attention_faults::OfMask(), attention_faults::OfScores(),
          attention_faults::OfProjections(), attention_faults::OfPositions()}) {
      table.insert(table.end(), faults.begin(), faults.end());
    }
    return table;
  }();
  return kTable;
}

std::span<const FaultKind> AttentionFaults() {
  static const std::vector<FaultKind> kKinds = [] {
    std::vector<FaultKind> kinds;
    for (const AttentionFault& fault : AttentionFaultTable()) kinds.push_back(fault.kind);
    return kinds;
  }();
  return kKinds;
}

}  // namespace heed
