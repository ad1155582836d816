#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/mapped_file.h"
#include "base/plural.h"

namespace heed {
namespace {

constexpr std::string_view kTemporaryEnding = ".heed-tmp";

tl::unexpected<Error> Exists(const std::string& path) {
  return Fail(ErrorKind::kIo, path, "exists already", "", "use --overwrite to replace it");
}

tl::unexpected<Error> SystemError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
      return Fail(ErrorKind::kIo, path, "its folder does not exist", "", "make the folder first");
    case ENOSPC:
    case EDQUOT:
      return Fail(ErrorKind::kIo, path, "no space left to write it", "", "free some space");
    case EACCES:
    case EPERM:
    case EROFS:
      return Fail(ErrorKind::kIo, path,
                  std::string("its folder is not writable: ") + std::strerror(error));
    case EEXIST:
      return Exists(path);
    default:
      return Fail(ErrorKind::kIo, path, std::string("cannot be written: ") + std::strerror(error));
  }
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

// Refuses what a rename would wrongly replace.
Status CheckDestination(const std::string& path, bool overwrite) {
  if (path.empty() || path.back() == '/') {
    return Fail(ErrorKind::kIo, path.empty() ? "output" : path, "a folder's name", "a file's name");
  }
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return Fail(ErrorKind::kIo, path, "a directory", "a file's name");
    if (!S_ISREG(info.st_mode)) {
      return Fail(ErrorKind::kIo, path, "not a regular file", "a regular file or a new name");
    }
    if (!overwrite) return Exists(path);
  }
  return {};
}

// 0 or errno. link() stands in where the file system has no rename that keeps an existing file,
// and a check just before the rename where it has no links either.
int RenameIfAbsent(const char* from, const char* to) {
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (link(from, to) == 0) {
    unlink(from);
    return 0;
  }
  if (errno == EEXIST) return EEXIST;
  struct stat info;
  if (lstat(to, &info) == 0) return EEXIST;
  return rename(from, to) == 0 ? 0 : errno;
}

}  // namespace

Status CheckNothingAt(const std::string& path, bool overwrite) {
  struct stat info;
  if (overwrite || lstat(path.c_str(), &info) != 0) return {};
  return Exists(path);
}

Result<std::string> ReadFile(const std::string& path, size_t cap) {
  HEED_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.text().size() > cap) {
    return Fail(ErrorKind::kFormat, path,
                fmt::format("{} byte{}", file.text().size(), Plural(std::ssize(file.text()))),
                fmt::format("at most {}", cap));
  }
  return std::string(file.text());
}

Result<AtomicFile> AtomicFile::Create(const std::string& path, bool overwrite) {
  static std::atomic<int> counter{0};
  HEED_TRY(CheckDestination(path, overwrite));
  AtomicFile file;
  file.path_ = path;
  file.overwrite_ = overwrite;
  const std::string folder = FolderOf(path);
  // A name may have 255 bytes; the hidden one is longer than the final one.
  const std::string name = path.substr(path.rfind('/') + 1).substr(0, 200);
  do {
    const std::string temporary =
        fmt::format("{}.{}.{}-{}{}", folder, name, getpid(), counter++, kTemporaryEnding);
    file.fd_ = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0) file.temporary_ = temporary;
  } while (file.fd_ < 0 && errno == EEXIST);
  if (file.fd_ < 0) return SystemError(path, errno);
  return file;
}

Result<AtomicFile> AtomicFile::Resume(const std::string& path, const std::string& partial,
                                      bool overwrite) {
  HEED_TRY(CheckDestination(path, overwrite));
  AtomicFile file;
  file.path_ = path;
  file.overwrite_ = overwrite;
  file.keep_ = true;
  file.fd_ = open(partial.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  struct stat info;
  if (file.fd_ < 0 || fstat(file.fd_, &info) != 0) return SystemError(partial, errno);
  file.temporary_ = partial;
  file.size_ = info.st_size;
  return file;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!keep_ && !temporary_.empty()) unlink(temporary_.c_str());
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(overwrite_, other.overwrite_);
  std::swap(keep_, other.keep_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

Status AtomicFile::Restart() {
  if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) return SystemError(path_, errno);
  size_ = 0;
  return {};
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    size_ += written;
  }
  return {};
}

Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return SystemError(path_, errno);
  if (close(std::exchange(fd_, -1)) != 0) return SystemError(path_, errno);
  HEED_TRY(CheckDestination(path_, overwrite_));
  const int error = overwrite_ ? (rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno)
                               : RenameIfAbsent(temporary_.c_str(), path_.c_str());
  if (error != 0) return SystemError(path_, error);
  temporary_.clear();
  // The name itself reaches the disk with its folder; a file system that cannot do so still has it.
  const int folder = open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

Status WriteFileAtomically(const std::string& path, std::span<const std::string_view> pieces,
                           bool overwrite) {
  HEED_ASSIGN(AtomicFile file, AtomicFile::Create(path, overwrite));
  for (const std::string_view piece : pieces) HEED_TRY(file.Write(piece));
  return file.Commit();
}

Result<FolderLock> FolderLock::Take(const std::string& folder) {
  FolderLock lock;
  lock.fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.fd_ < 0) return Fail(ErrorKind::kIo, folder, std::strerror(errno), "a folder");
  // A file system without locks says something else, and goes unguarded.
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Fail(ErrorKind::kIo, folder, "a run that is going on in it", "a folder at rest",
                "wait until that run ends, or choose another folder");
  }
  return lock;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Result<ScratchFolder> ScratchFolder::Create() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "heed-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return Fail(ErrorKind::kIo, "a temporary folder", "none that can be made", "",
                "set TMPDIR to a folder that can be written");
  }
  return ScratchFolder(std::move(path));
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

void RemoveLeftovers(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') && name.ends_with(kTemporaryEnding)) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

}  // namespace heed
