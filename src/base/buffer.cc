#include "base/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "base/check.h"

namespace heed {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<size_t> mapped_by_all{0};

// The number behind `key` in a file of the system, or infinity.
double SystemNumber(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  double number = 0;
  return file >> number ? number : std::numeric_limits<double>::infinity();
}

double FreeMemory() {
  const double machine = SystemNumber("/proc/meminfo", "MemAvailable:") * 1024;
  const double group = SystemNumber("/sys/fs/cgroup/memory.max", "");
  if (!std::isfinite(group)) return machine;
  // Cached files count as used, but make room.
  const double used = SystemNumber("/sys/fs/cgroup/memory.stat", "anon");
  return std::min(machine, group - (std::isfinite(used) ? used : 0));
}

}  // namespace

bool MemoryHolds(double bytes) {
  static const double free_memory = FreeMemory();
  return bytes <= free_memory - static_cast<double>(mapped_by_all.load());
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (!MemoryHolds(static_cast<double>(bytes))) {
    size_ = 0;
    return;
  }
  // Room to start on a huge page's boundary; untouched pages cost nothing.
  const bool huge = bytes >= kHugePage;
  const size_t wanted = huge ? bytes + kHugePage : bytes;
  void* base = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    size_ = 0;
    return;
  }
  auto* start = static_cast<std::byte*>(base);
  mapped_ = bytes;
  mapped_by_all += bytes;
  if (huge) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
    if (skip > 0) munmap(start, skip);
    if (skip < kHugePage) {
      // The tail beyond the last whole page of the request.
      const size_t page = 4096, end = (skip + bytes + page - 1) / page * page;
      if (end < wanted) munmap(start + end, wanted - end);
    }
    start += skip;
    madvise(start, bytes, MADV_HUGEPAGE);
  }
  data_ = start;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  munmap(data_, mapped_);
  mapped_by_all -= mapped_;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace heed
