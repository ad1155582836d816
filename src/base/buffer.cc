#include "base/buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace heed {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
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
  if (data_ != nullptr) munmap(data_, mapped_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace heed
