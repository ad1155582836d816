// Running the built program as a user does, from a folder of its own.
#pragma once

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "support/temporary_folder.h"

namespace heed {

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct ShellResult {
  int exit_code = -1;
  std::string out, err;
};

// Runs a line of sh in `folder`, where $heed is the program. exit_code is -1 after a signal.
inline ShellResult Shell(const std::string& folder, const std::string& line) {
  const TemporaryFolder streams;
  const std::string out = streams / "out", err = streams / "err";
  const std::string command = "cd '" + folder + "' && heed='" HEED_PROGRAM "' && { " + line +
                              "\n} >'" + out + "' 2>'" + err + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadText(out), ReadText(err)};
}

// What the same line shows on a terminal of so many columns, stdout and stderr mixed.
inline std::string OnTerminal(const std::string& folder, const std::string& line,
                              unsigned short columns) {
  int terminal = -1;
  const winsize size{50, columns, 0, 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    const std::string command = "cd '" + folder + "' && heed='" HEED_PROGRAM "' && " + line;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  char piece[4096];
  // Ends with EIO once the child is gone.
  for (ssize_t n; (n = read(terminal, piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<size_t>(n));
  }
  close(terminal);
  waitpid(child, nullptr, 0);
  std::erase(text, '\r');
  return text;
}

}  // namespace heed
