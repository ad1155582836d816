#include "report/gnuplot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/quote.h"

extern char** environ;

namespace heed {
namespace {

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

std::string Contents(int fd) {
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got;
       (got = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

Result<std::string> RunGnuplot(const std::string& script) {
  const Descriptor in(memfd_create("script", MFD_CLOEXEC));
  const Descriptor out(memfd_create("picture", MFD_CLOEXEC));
  const Descriptor complaints(memfd_create("complaints", MFD_CLOEXEC));
  const auto size = static_cast<ssize_t>(script.size());
  if (out.get() < 0 || complaints.get() < 0 ||
      pwrite(in.get(), script.data(), script.size(), 0) != size) {
    return Fail(ErrorKind::kIo, "gnuplot", std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, complaints.get(), 2);
  std::string program = "gnuplot", option = "-d";  // -d: nobody's start-up files
  char* arguments[] = {program.data(), option.data(), nullptr};
  pid_t child;
  const int error = posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) {
    return Fail(ErrorKind::kIo, "gnuplot", "not installed", "",
                "install it: apt-get install gnuplot-nox");
  }
  if (error != 0) return Fail(ErrorKind::kIo, "gnuplot", std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string picture = Contents(out.get());
  if (status == 0 && !picture.empty()) return picture;
  return Fail(ErrorKind::kIo, "gnuplot", "failed: " + Contents(complaints.get()).substr(0, 400));
}

std::string GnuplotQuoted(std::string_view text) {
  std::string out = "'";
  for (const char c : Printable(text)) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

std::string GnuplotTerminal(bool png, int width, int height) {
  return png ? fmt::format(
                   "set terminal pngcairo size {},{} fontscale 2 linewidth 2 pointscale 2 "
                   "noenhanced font 'DejaVu Sans,12'\n",
                   2 * width, 2 * height)
             : fmt::format(
                   "set terminal svg size {},{} noenhanced background rgb 'white' "
                   "font 'DejaVu Sans,Verdana,Helvetica,Arial,sans-serif,13'\n",
                   width, height);
}

}  // namespace heed
