#include "cli/interrupt.h"

#include <unistd.h>

#include <utility>

namespace heed {
namespace {

std::atomic<bool> asked{false};
std::atomic<const std::string*> last_words{nullptr};

// Its action is the default again by now, and takes place when the handler returns.
void EndAtOnce(int signal) {
  if (const std::string* words = last_words) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, words->data(), words->size());
  }
  raise(signal);
}

void AskToStop(int signal) {
  asked = true;
  struct sigaction second = {};
  second.sa_handler = EndAtOnce;
  second.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(signal, &second, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  asked = false;
  struct sigaction action = {};
  action.sa_handler = AskToStop;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGHUP, &action, &old_hup_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
  last_words = nullptr;
}

const std::atomic<bool>& InterruptGuard::flag() { return asked; }

void InterruptGuard::SetLastWords(std::string words) {
  turn_ = 1 - turn_;
  words_[turn_] = std::move(words);
  last_words = &words_[turn_];
}

}  // namespace heed
