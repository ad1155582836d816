// Small files read whole, and files written so that nobody ever meets half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace heed {

// The whole of a regular file of at most `cap` bytes. Errors: as MappedFile::Open; too large.
Result<std::string> ReadFile(const std::string& path, size_t cap);

// A file under construction. Bytes go to a hidden file ".NAME.PID-N.heed-tmp" beside `path`, which
// takes its final name in Commit() and is removed when that is never reached. A killed run leaves
// at most the hidden file.
class AtomicFile {
 public:
  // Errors (kIo): `path` exists and `overwrite` is false, is a directory or a device; its folder is
  // missing or not writable.
  static Result<AtomicFile> Create(const std::string& path, bool overwrite);
  // One that is built over several runs: goes on behind the bytes of `partial`, a name beside
  // `path`, which stays there when Commit() is not reached.
  static Result<AtomicFile> Resume(const std::string& path, const std::string& partial,
                                   bool overwrite);

  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Errors (kIo): no space left, and whatever else the system says.
  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }
  // Flushes to the disk and renames; without `overwrite` a file that came to be meanwhile is kept
  // and refused. Called once.
  Status Commit();
  // Begins again with nothing.
  Status Restart();
  // Gives the bytes up, of a resumed file too.
  void Discard() { keep_ = false; }
  int64_t size() const { return size_; }

 private:
  AtomicFile() = default;

  std::string path_;
  std::string temporary_;  // empty when nothing is left to remove
  bool overwrite_ = false;
  bool keep_ = false;  // the temporary file outlives this object
  int64_t size_ = 0;   // bytes written so far
  int fd_ = -1;
};

// Holds a folder for one process; it is free again when the holder goes, however it ends.
class FolderLock {
 public:
  // Errors (kIo): another holds it; no such folder.
  static Result<FolderLock> Take(const std::string& folder);

  FolderLock() = default;
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept { *this = std::move(other); }
  FolderLock& operator=(FolderLock&& other) noexcept;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

// Removes what killed runs left of files under construction in `folder`, not below it. Only for
// folders that no other process writes to.
void RemoveLeftovers(const std::string& folder);

// AtomicFile for pieces that are at hand.
Status WriteFileAtomically(const std::string& path, std::span<const std::string_view> pieces,
                           bool overwrite);

}  // namespace heed
