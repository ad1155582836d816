#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/buffer.h"
#include "base/quote.h"

namespace heed {
namespace {

// Where files lie, for a handler that can neither lock nor allocate. More files than places: the
// rest goes without a name.
struct MappedRange {
  std::atomic<uintptr_t> begin{0};  // 0: the place is free; set last
  uintptr_t end = 0;
  char name[512] = {};
};
constinit std::array<MappedRange, 256> ranges;
constinit std::mutex ranges_change;

void NameRange(const void* data, size_t size, const std::string& path) {
  std::string name = Printable(path);
  name.erase(0, name.size() - std::min(name.size(), sizeof(MappedRange::name) - 1));
  const std::lock_guard lock(ranges_change);
  const auto free = std::ranges::find_if(ranges, [](const auto& r) { return r.begin == 0; });
  if (free == ranges.end()) return;
  free->end = reinterpret_cast<uintptr_t>(data) + size;
  std::strcpy(free->name, name.c_str());
  free->begin = reinterpret_cast<uintptr_t>(data);
}

void ForgetRange(const void* data) {
  const std::lock_guard lock(ranges_change);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const auto at = std::ranges::find_if(ranges, [&](const auto& r) { return r.begin == begin; });
  if (at != ranges.end()) at->begin = 0;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a named pipe is refused below instead of waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Fail(ErrorKind::kIo, path, errno == ENOENT ? "no such file" : std::strerror(errno), "",
                errno == ENOENT ? "check the path" : "");
  }
  struct stat info;
  MappedFile file;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Fail(ErrorKind::kIo, path, S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
                "a regular file");
  }
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return Fail(ErrorKind::kIo, path, std::string("cannot be mapped: ") + std::strerror(error));
    }
    file.data_ = static_cast<const std::byte*>(data);
    NameRange(data, file.size_, path);
  }
  close(fd);
  return file;
}

const char* MappedFileAt(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappedRange& range : ranges) {
    const uintptr_t begin = range.begin;
    if (begin != 0 && begin <= at && at < range.end) return range.name;
  }
  return nullptr;
}

void PrepareToRead(std::span<const std::byte> mapped) {
  // The first read of a page makes the system map those around it, which takes it four fifths of
  // the time of MADV_POPULATE_READ.
  constexpr size_t kAround = size_t{64} << 10;
  if (!MemoryHolds(static_cast<double>(mapped.size()))) return;
  for (size_t at = 0; at < mapped.size(); at += kAround) {
    [[maybe_unused]] const volatile std::byte read = mapped[at];
  }
}

void ReleaseRead(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  ForgetRange(data_);
  munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace heed
