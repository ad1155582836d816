#include "report/gnuplot.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/process.h"
#include "base/quote.h"

namespace heed {

Result<std::string> RunGnuplot(const std::string& script) {
  // -d: nobody's start-up files.
  Result<ProcessResult> run = RunProcess({.arguments = {"gnuplot", "-d"}, .input = script});
  if (!run) {
    Error error = std::move(run).error();
    if (error.found == std::strerror(ENOENT)) error.found = "not installed";
    error.hint = "install it: apt-get install gnuplot-nox";
    return tl::make_unexpected(std::move(error));
  }
  if (run->Succeeded() && !run->out.empty()) return std::move(run->out);
  return Fail(ErrorKind::kIo, "gnuplot", "failed: " + run->err.substr(0, 400));
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
