// The command lines of a page of documentation: those in its sh blocks that run build/heed.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "support/shell.h"

namespace heed {

// `page` is named from the project's folder: "README.md".
inline std::vector<std::string> DocCommands(const std::string& page) {
  std::istringstream text(ReadText(std::string(HEED_SOURCE_DIR "/") + page));
  std::vector<std::string> commands;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
    } else if (inside && line.starts_with("build/heed ")) {
      commands.push_back(line);
    }
  }
  return commands;
}

}  // namespace heed
