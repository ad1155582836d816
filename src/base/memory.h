// How much memory this machine has.
#pragma once

#include <cstdint>

namespace heed {

struct MachineMemory {
  int64_t total =
      0;             // bytes that this process may use: the machine's, or its control group's limit
  int64_t free = 0;  // of these, what is free now without swapping
};

// Zeros when the system does not say.
MachineMemory ReadMachineMemory();

}  // namespace heed
