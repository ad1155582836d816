#include "cli/interrupt.h"

namespace heed {
namespace {

std::atomic<bool> asked{false};

}  // namespace

InterruptGuard::InterruptGuard() {
  asked = false;
  struct sigaction action = {};
  action.sa_handler = [](int) { asked = true; };
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

const std::atomic<bool>& InterruptGuard::flag() { return asked; }

}  // namespace heed
