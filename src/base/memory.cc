#include "base/memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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

void UseHugeHeap() {
#ifdef __GLIBC__
  constexpr size_t kRoom = size_t{32} << 20;
  // One heap for all threads, which larger blocks leave, and which is not given back.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, kRoom / 2);
  mallopt(M_TRIM_THRESHOLD, 2 * kRoom);
  mallopt(M_TOP_PAD, kRoom);
  std::free(std::malloc(kRoom / 4));
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0)) / page * page;
  madvise(reinterpret_cast<void*>(end - kRoom), kRoom, MADV_HUGEPAGE);
#endif
}

int64_t PeakMemory() { return NumberAfter("/proc/self/status", "VmHWM:") * kKibibyte; }

void ForgetPeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace heed
