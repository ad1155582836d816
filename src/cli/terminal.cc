#include "cli/terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "report/format.h"

namespace heed {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::string_view kEraseLine = "\r\x1b[2K";
constexpr double kRedrawSeconds = 0.1;
constexpr double kWindowSeconds = 20;
constexpr int64_t kPlainLines = 20;
constexpr int kNarrowestBar = 8, kWidestBar = 40;

// 0, or the errno that stopped the writing.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int ColumnsOf(int fd) {
  struct winsize size;
  return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool IsCapable(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

size_t TextColumns(int fd) {
  constexpr int kLeast = 40, kMost = 100;
  const int columns = IsCapable(fd) ? ColumnsOf(fd) : kMost;
  return static_cast<size_t>(columns > 0 ? std::clamp(columns, kLeast, kMost) : kMost);
}

std::string Bar(double share, int width, bool utf8) {
  const int full = static_cast<int>(share * width), rest = width - full;
  std::string out;
  for (int i = 0; i < full; ++i) out += utf8 ? "━" : "#";
  for (int i = 0; i < rest; ++i) out += utf8 ? "╌" : ".";
  return out;
}

double Share(const ProgressState& state) {
  if (state.total <= 0) return 0;
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
}

// What follows the bar, the most wanted first.
std::vector<std::string> Parts(const ProgressState& state) {
  std::vector<std::string> parts;
  if (state.rate > 0) {
    const bool finished = state.done >= state.total;
    const double left = static_cast<double>(state.total - state.done) / state.rate;
    parts.push_back(finished ? "in " + FormatDuration(state.elapsed_s)
                             : FormatDuration(left) + " left");
  }
  for (const auto& [name, value] : state.figures) parts.push_back(name + " " + value);
  if (state.rate > 0) parts.push_back(FormatQuantity(state.rate) + " " + state.unit + "/s");
  return parts;
}

}  // namespace

bool LocaleIsUtf8() { return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

Status Terminal::Write(std::string_view text) {
  if (closed_) return {};
  const int error = WriteAll(settings_.out, text);
  if (error == EPIPE) {
    closed_ = true;
    return {};
  }
  if (error != 0) {
    return Fail(ErrorKind::kIo, "standard output", std::strerror(error), "",
                "write to a place with room");
  }
  return {};
}

Status Terminal::Say(std::string_view text) { return settings_.json ? Status() : Write(text); }

Status Terminal::Document(std::string_view json) {
  return settings_.json ? Write(std::string(json) + "\n") : Status();
}

void Terminal::Note(std::string_view line) {
  if (settings_.quiet) return;
  const std::string erase(bar_shown_ ? kEraseLine : "");
  bar_shown_ = false;
  WriteAll(settings_.err, erase + std::string(line) + "\n");
}

void Terminal::Complain(const Error& error) {
  const std::string erase(bar_shown_ ? kEraseLine : "");
  bar_shown_ = false;
  WriteAll(settings_.err, erase + "heed: " + error.Message() + "\n");
}

bool Terminal::out_is_terminal() const { return IsCapable(settings_.out); }
bool Terminal::err_is_terminal() const { return IsCapable(settings_.err); }
bool Terminal::out_has_colour() const {
  const char* no_colour = std::getenv("NO_COLOR");
  return out_is_terminal() && (no_colour == nullptr || *no_colour == '\0');
}

int Terminal::width() const {
  for (const int fd : {settings_.err, settings_.out}) {
    if (const int columns = ColumnsOf(fd); columns > 0) return columns;
  }
  return 100;
}

size_t Terminal::text_width() const { return TextColumns(settings_.out); }
size_t Terminal::note_width() const { return TextColumns(settings_.err); }

std::string BarLine(const ProgressState& state, int width, bool utf8) {
  const double share = Share(state);
  const std::string head = fmt::format("{} {:3.0f}% ", state.label, std::floor(share * 100));
  std::vector<std::string> parts = Parts(state);
  parts.insert(parts.begin(),
               fmt::format("{}/{}", FormatCount(state.done), FormatCount(state.total)));
  std::string tail;
  while (true) {
    tail = "";
    for (const std::string& part : parts) tail += "  " + part;
    const int left = width - static_cast<int>(TextWidth(head) + TextWidth(tail));
    if (left >= kNarrowestBar) {
      return head + Bar(share, std::min(left, kWidestBar), utf8) + tail;
    }
    if (parts.empty()) break;
    parts.pop_back();
  }
  return static_cast<int>(TextWidth(head)) <= width ? head : "";
}

std::string PlainLine(const ProgressState& state) {
  std::string line = fmt::format("{}: {}/{} ({:.0f}%)", state.label, FormatCount(state.done),
                                 FormatCount(state.total), std::floor(Share(state) * 100));
  for (const std::string& part : Parts(state)) line += ", " + part;
  return line;
}

Progress::Progress(Terminal& terminal, std::string label, std::string unit, int64_t total)
    : terminal_(terminal), bar_(terminal.err_is_terminal()), utf8_(LocaleIsUtf8()) {
  state_.label = std::move(label);
  state_.unit = std::move(unit);
  state_.total = total;
  StartAt(0);
}

void Progress::StartAt(int64_t done, Clock::time_point now) {
  first_ = state_.done = done;
  start_ = now;
  last_drawn_ = now - std::chrono::seconds(1);
  window_ = {{now, done}};
  next_line_ = done + 1;
}

void Progress::Measure(Clock::time_point now) {
  window_.emplace_back(now, state_.done);
  while (window_.size() > 2 && Seconds(now - window_[1].first).count() >= kWindowSeconds) {
    window_.erase(window_.begin());
  }
  state_.elapsed_s = Seconds(now - start_).count();
  const bool finished = state_.done >= state_.total;
  const auto& [since, from] = finished ? std::pair(start_, first_) : window_.front();
  const double seconds = Seconds(now - since).count();
  state_.rate =
      seconds > 0 && !state_.unit.empty() ? static_cast<double>(state_.done - from) / seconds : 0;
}

void Progress::Update(int64_t done, std::vector<Figure> figures, Clock::time_point now) {
  if (terminal_.quiet()) return;
  state_.done = done;
  state_.figures = std::move(figures);
  if (bar_) {
    if (Seconds(now - last_drawn_).count() < kRedrawSeconds) return;
    last_drawn_ = now;
    Measure(now);
    // Columns stay free for the ^C that a terminal echoes, and some wrap on the last one.
    WriteAll(terminal_.settings_.err,
             std::string(kEraseLine) + BarLine(state_, terminal_.width() - 3, utf8_));
    terminal_.bar_shown_ = true;
  } else if (done >= next_line_ && done < state_.total) {
    Measure(now);
    terminal_.Note(PlainLine(state_));
    const int64_t step = std::max<int64_t>(1, state_.total / kPlainLines);
    next_line_ = (done / step + 1) * step;
  }
}

void Progress::Finish(Clock::time_point now) {
  if (terminal_.quiet()) return;
  Measure(now);
  terminal_.Note(bar_ ? BarLine(state_, terminal_.width() - 3, utf8_) : PlainLine(state_));
}

void Progress::Erase() {
  if (!terminal_.bar_shown_) return;
  WriteAll(terminal_.settings_.err, kEraseLine);
  terminal_.bar_shown_ = false;
}

}  // namespace heed
