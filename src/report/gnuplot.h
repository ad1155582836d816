// gnuplot as a library: its script comes from memory and its output goes there, so that no file
// name ever passes through its language.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace heed {

// What gnuplot draws for a script. Errors (kIo): not installed, or it complained.
Result<std::string> RunGnuplot(const std::string& script);

// Printable text in single quotes, where gnuplot reads nothing but the quote itself.
std::string GnuplotQuoted(std::string_view text);

// The script's first lines for a picture of that size in points: SVG, or PNG with two dots for each
// of them, for screens that can show them.
std::string GnuplotTerminal(bool png, int width, int height);

}  // namespace heed
