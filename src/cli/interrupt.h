// Ctrl-C as a question to the work at hand.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <string>

namespace heed {

// While it lives, the first Ctrl-C, or a terminal that closes, asks the work to stop; the second
// ends the program. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const { return flag(); }
  static const std::atomic<bool>& flag();
  // What the second writes to stderr before it ends the program, until other words replace these.
  void SetLastWords(std::string words);

 private:
  struct sigaction old_int_, old_term_, old_hup_;
  // By turns, for a signal may come while one is replaced.
  std::array<std::string, 2> words_;
  size_t turn_ = 0;
};

}  // namespace heed
