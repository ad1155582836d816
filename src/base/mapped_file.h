// A regular file mapped read-only, of any size including 0 and beyond 4 GiB.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace heed {

class MappedFile {
 public:
  // Errors (kIo): missing, a directory, not a regular file, not readable.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The file whose mapping holds an address, or null when none does or its name is not known. For
// handlers of signals: it allocates nothing and waits for nobody. Names are printable, and the
// longest keep their end.
const char* MappedFileAt(const void* address);

// Makes the pages of mapped bytes ready to be read, all at once, where memory holds them: one by
// one their first reads would take several times as long.
void PrepareToRead(std::span<const std::byte> mapped);
// Gives the memory of whole pages of mapped bytes back; they are read again when they are needed.
void ReleaseRead(std::span<const std::byte> mapped);

}  // namespace heed
