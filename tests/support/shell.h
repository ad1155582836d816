// Running the built program as a user does, from a folder of its own.
#pragma once

#include <sys/wait.h>

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

}  // namespace heed
