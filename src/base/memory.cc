#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace heed {
namespace {

constexpr int64_t kKibibyte = 1024;

// The number after `word` in a file of the system, or 0.
int64_t NumberAfter(const char* path, const std::string& word) {
  std::ifstream file(path);
  std::string found;
  int64_t number = 0;
  while (file >> found) {
    if (found == word && file >> number) return number;
  }
  return 0;
}

// The number that a file of the system begins with; 0 for "max" and for no file.
int64_t NumberIn(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : 0;
}

}  // namespace

MachineMemory ReadMachineMemory() {
  MachineMemory memory;
  memory.total = NumberAfter("/proc/meminfo", "MemTotal:") * kKibibyte;
  memory.free = NumberAfter("/proc/meminfo", "MemAvailable:") * kKibibyte;
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max");
  if (limit > 0 && limit < memory.total) {
    memory.total = limit;
    memory.free =
        std::clamp<int64_t>(limit - NumberIn("/sys/fs/cgroup/memory.current"), 0, memory.free);
  }
  return memory;
}

int64_t PeakMemory() { return NumberAfter("/proc/self/status", "VmHWM:") * kKibibyte; }

void ForgetPeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace heed
