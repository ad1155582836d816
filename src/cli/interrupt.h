// Ctrl-C as a question to the work at hand.
#pragma once

#include <atomic>
#include <csignal>

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

 private:
  struct sigaction old_int_, old_term_, old_hup_;
};

}  // namespace heed
