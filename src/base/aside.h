// Work of its own beside the caller's, for things that the team of threads has no part in.
#pragma once

#include <functional>
#include <thread>

namespace heed {

// Runs `work` on a thread of its own, or at once where the system gives no thread.
class Aside {
 public:
  explicit Aside(std::function<void()> work);
  ~Aside() { Join(); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  // Returns when the work is done.
  void Join();
  // How many threads work aside: processors that the team would take from them.
  static int Running();

 private:
  std::thread thread_;
};

}  // namespace heed
