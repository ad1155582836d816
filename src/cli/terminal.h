// What the program says: results on stdout, progress and notes on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace heed {

class Terminal {
 public:
  struct Settings {
    int out = 1, err = 2;  // file descriptors
    bool quiet = false;    // nothing but errors on `err`
    bool json = false;     // `out` takes one JSON document and nothing else
  };

  explicit Terminal(Settings settings) : settings_(settings) {}
  Terminal() = default;

  // For people: on stdout, or nowhere with --json.
  Status Say(std::string_view text);
  // The document of --json, ended by a newline; nothing without --json.
  Status Document(std::string_view json);
  // A line on stderr, unless quiet.
  void Note(std::string_view line);
  // The one line of an error on stderr.
  void Complain(const Error& error);

  bool json() const { return settings_.json; }
  bool quiet() const { return settings_.quiet; }
  // Whether colours and the bar make sense there. NO_COLOR is respected.
  bool out_is_terminal() const;
  bool err_is_terminal() const;
  bool out_has_colour() const;
  // Columns, of stderr when it is a terminal, else of stdout, else 100.
  int width() const;
  // Columns that text for people may take: stdout's when it is a terminal, from 40 to 100, else
  // 100.
  size_t text_width() const;
  size_t note_width() const;  // the same of stderr, for notes

  // Writes to stdout. A reader that went away (EPIPE) is no error: closed() becomes true and
  // further text is dropped. Errors (kIo): the device is full, and the like.
  Status Write(std::string_view text);
  bool closed() const { return closed_; }

 private:
  friend class Progress;
  Settings settings_;
  bool closed_ = false;
  bool bar_shown_ = false;
};

// Whether the locale's character set is UTF-8.
bool LocaleIsUtf8();

// A named number beside the bar: {"loss", "2.413"}.
using Figure = std::pair<std::string, std::string>;

struct ProgressState {
  std::string label;  // "training"
  std::string unit;   // of the rate: "it", "tokens"; empty where steps take unlike times
  int64_t done = 0, total = 0;
  double rate = 0;       // units per second; 0 when not known yet
  double elapsed_s = 0;  // since the start
  std::vector<Figure> figures;
};

// "training  45% ━━━━━━╸──── 450/1,000  812 it/s  0:07 left  loss 2.413": at most `width` columns;
// the bar shrinks first, then figures go from the right.
std::string BarLine(const ProgressState& state, int width, bool utf8);
// The same without a bar: "training: 450/1,000 (45%), 812 it/s, 0:07 left, loss 2.413".
std::string PlainLine(const ProgressState& state);

// Shows how far a loop is: a bar redrawn at most ten times a second on a terminal, a plain line
// every twentieth of the way elsewhere, nothing when quiet.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress(Terminal& terminal, std::string label, std::string unit, int64_t total);
  ~Progress() { Erase(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Where a resumed loop begins, so that the rate counts this run's work alone.
  void StartAt(int64_t done, Clock::time_point now = Clock::now());
  void Update(int64_t done, std::vector<Figure> figures, Clock::time_point now = Clock::now());
  // Leaves the last state as a line. Without it the bar is erased.
  void Finish(Clock::time_point now = Clock::now());
  // Takes the bar away so that something else can be written; the next Update redraws it.
  void Erase();

 private:
  void Measure(Clock::time_point now);

  Terminal& terminal_;
  ProgressState state_;
  bool bar_, utf8_;
  int64_t first_ = 0, next_line_ = 0;
  Clock::time_point start_, last_drawn_;
  // The rate comes from this window of the last few seconds.
  std::vector<std::pair<Clock::time_point, int64_t>> window_;
};

}  // namespace heed
