// How much memory this machine has, and how much this process takes.
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

// The most bytes that this process has held at once, 0 when the system does not say; and a new
// beginning of that count, where the system allows one.
int64_t PeakMemory();
void ForgetPeakMemory();

// Lets the heap's first megabytes be huge pages, for programs that fill them at once: each small
// page takes the system a microsecond and more. To be called before there are other threads.
void UseHugeHeap();

}  // namespace heed
