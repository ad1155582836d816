#include "base/aside.h"

#include <atomic>
#include <system_error>

namespace heed {

namespace {

std::atomic<int> running{0};

}  // namespace

Aside::Aside(std::function<void()> work) {
  try {
    ++running;
    thread_ = std::thread([work] {
      work();
      --running;
    });
  } catch (const std::system_error&) {
    --running;
    work();
  }
}

int Aside::Running() { return running; }

void Aside::Join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace heed
