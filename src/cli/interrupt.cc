#include "cli/interrupt.h"

#include <atomic>

namespace heed {
namespace {

std::atomic<bool> interrupted{false};

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = false;
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGHUP, &action, &old_hup_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
}

bool InterruptGuard::Interrupted() { return interrupted; }

}  // namespace heed
