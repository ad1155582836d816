#include "base/aside.h"

#include <system_error>

namespace heed {

Aside::Aside(std::function<void()> work) {
  try {
    thread_ = std::thread(work);
  } catch (const std::system_error&) {
    work();
  }
}

void Aside::Join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace heed
