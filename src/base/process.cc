#include "base/process.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

extern char** environ;

namespace heed {
namespace {

constexpr off_t kMostOutput = off_t{64} << 20;

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

off_t SizeOf(const Descriptor& file) {
  struct stat status;
  return fstat(file.get(), &status) == 0 ? status.st_size : 0;
}

std::string Contents(const Descriptor& file) {
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got;
       static_cast<off_t>(text.size()) < kMostOutput &&
       (got = pread(file.get(), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

// The child's pid, in a group of the same number. Error: errno's number.
tl::expected<pid_t, int> Spawn(const ProcessRequest& request, const Descriptor& in,
                               const Descriptor& out, const Descriptor& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, err.get(), 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<std::string> words = request.arguments;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return tl::make_unexpected(error);
  return child;
}

}  // namespace

Result<ProcessResult> RunProcess(const ProcessRequest& request) {
  using Clock = std::chrono::steady_clock;
  const std::string& name = request.arguments[0];
  const Descriptor in(memfd_create("in", MFD_CLOEXEC));
  const Descriptor out(memfd_create("out", MFD_CLOEXEC));
  const Descriptor err(memfd_create("err", MFD_CLOEXEC));
  const auto size = static_cast<ssize_t>(request.input.size());
  if (out.get() < 0 || err.get() < 0 ||
      pwrite(in.get(), request.input.data(), request.input.size(), 0) != size) {
    return Fail(ErrorKind::kIo, name, std::strerror(errno));
  }
  const auto child = Spawn(request, in, out, err);
  if (!child) return Fail(ErrorKind::kIo, name, std::strerror(child.error()));
  ProcessResult result;
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(200);
  int status = 0;
  bool stopped = false;
  while (waitpid(*child, &status, WNOHANG) != *child) {
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    stopped = request.stop != nullptr && *request.stop;
    result.timed_out = request.timeout_s > 0 && elapsed.count() > request.timeout_s;
    result.wrote_too_much = SizeOf(out) > kMostOutput || SizeOf(err) > kMostOutput;
    if (stopped || result.timed_out || result.wrote_too_much) {
      kill(-*child, SIGKILL);
      while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10000));
  }
  // What it left running in its group; the group is gone when there is nothing.
  kill(-*child, SIGKILL);
  if (stopped) return Fail(ErrorKind::kInterrupted, name, "stopped");
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  result.out = Contents(out);
  result.err = Contents(err);
  return result;
}

}  // namespace heed
