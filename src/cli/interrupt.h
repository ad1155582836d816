// Ctrl-C as a question of the loop that it should end.
#pragma once

#include <csignal>

namespace heed {

// While it lives, the first Ctrl-C, or a terminal that closes, asks the work to stop; the second
// ends the program.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool Interrupted();

 private:
  struct sigaction old_int_, old_term_, old_hup_;
};

}  // namespace heed
