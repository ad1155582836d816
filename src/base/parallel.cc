#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"

namespace heed {
namespace {

thread_local int thread_index = 0;
thread_local bool inside_piece = false;

inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Members spin this often before they sleep: some tens of microseconds, longer than the serial
// stretches between two products and far shorter than what an idle program should burn.
constexpr int kSpins = 4000;

// A contiguous range of pieces, taken from its front by its owner and from its back by others.
struct alignas(64) Range {
  std::atomic<uint64_t> bounds{0};  // low half: next piece, high half: end

  void Set(uint32_t begin, uint32_t end) {
    bounds.store(uint64_t{end} << 32 | begin, std::memory_order_relaxed);
  }
  int64_t TakeFront() {
    uint64_t now = bounds.load(std::memory_order_relaxed);
    while (static_cast<uint32_t>(now) < static_cast<uint32_t>(now >> 32)) {
      if (bounds.compare_exchange_weak(now, now + 1, std::memory_order_relaxed)) {
        return static_cast<uint32_t>(now);
      }
    }
    return -1;
  }
  int64_t TakeBack() {
    uint64_t now = bounds.load(std::memory_order_relaxed);
    while (static_cast<uint32_t>(now) < static_cast<uint32_t>(now >> 32)) {
      if (bounds.compare_exchange_weak(now, now - (uint64_t{1} << 32), std::memory_order_relaxed)) {
        return static_cast<int64_t>(now >> 32) - 1;
      }
    }
    return -1;
  }
};

class Team {
 public:
  explicit Team(int size) : size_(size), ranges_(new Range[size]) {
    try {
      for (int i = 1; i < size; ++i) members_.emplace_back([this, i] { Serve(i); });
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are do the work.
      size_ = static_cast<int>(members_.size()) + 1;
    }
  }
  ~Team() {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& member : members_) member.join();
  }

  int size() const { return size_; }

  void Run(int64_t pieces, PieceFunction body) {
    body_ = &body;
    caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    for (int i = 0; i < size_; ++i) {
      ranges_[i].Set(static_cast<uint32_t>(pieces * i / size_),
                     static_cast<uint32_t>(pieces * (i + 1) / size_));
    }
    working_.store(size_ - 1, std::memory_order_relaxed);
    // Sequentially consistent with the sleeper's count, so that no wake-up is lost.
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    Work(0);
    for (int spins = 0; working_.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < kSpins) {
        SpinPause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  void Work(int self) {
    inside_piece = true;
    int64_t piece;
    while ((piece = ranges_[self].TakeFront()) >= 0) (*body_)(piece);
    for (int i = 1; i < size_; ++i) {
      Range& other = ranges_[(self + i) % size_];
      while ((piece = other.TakeBack()) >= 0) (*body_)(piece);
    }
    inside_piece = false;
  }

  // Moves a member that runs where the caller does to another core. The system wakes it there, and
  // leaves both for a tenth of a second and more, one waiting for the other, since each ran a
  // moment ago.
  void LeaveCallersCore() const {
    const int cpu = caller_cpu_.load(std::memory_order_relaxed);
    cpu_set_t all;
    if (cpu < 0 || sched_getcpu() != cpu || sched_getaffinity(0, sizeof(all), &all) != 0) return;
    cpu_set_t others = all;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) + 1 < size_ || sched_setaffinity(0, sizeof(others), &others) != 0)
      return;
    sched_setaffinity(0, sizeof(all), &all);
  }

  void Serve(int self) {
    thread_index = self;
    uint32_t seen = 0;
    while (true) {
      uint32_t now;
      int spins = 0;
      bool slept = false;
      while ((now = generation_.load(std::memory_order_acquire)) == seen) {
        if (++spins < kSpins) {
          SpinPause();
          continue;
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        generation_.wait(seen, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        slept = true;
      }
      seen = now;
      if (stop_.load(std::memory_order_relaxed)) return;
      if (slept) LeaveCallersCore();
      Work(self);
      working_.fetch_sub(1, std::memory_order_release);
    }
  }

  int size_;
  const PieceFunction* body_ = nullptr;
  std::unique_ptr<Range[]> ranges_;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> working_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> caller_cpu_{-1};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> members_;
};

std::unique_ptr<Team>& TheTeam() {
  static std::unique_ptr<Team> team = std::make_unique<Team>(HardwareThreads());
  return team;
}

}  // namespace

int HardwareThreads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set), granted = GrantedProcessors("/sys/fs/cgroup");
  return std::max(1, granted > 0 ? std::min(count, granted) : count);
}

int GrantedProcessors(const std::string& folder) {
  // Microseconds of processor time in a period; "max" and -1 stand for no limit.
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.max") >> quota >> period)) {
    std::ifstream(folder + "/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu/cpu.cfs_period_us") >> period;
  }
  if (!(quota > 0 && period > 0)) return 0;
  return static_cast<int>(std::min(std::ceil(quota / period), 1e6));
}

int NumThreads() { return TheTeam()->size(); }

void SetNumThreads(int threads) {
  HEED_DCHECK(!inside_piece && threads >= 1);
  std::unique_ptr<Team>& team = TheTeam();
  if (team->size() == threads) return;
  team.reset();
  team = std::make_unique<Team>(threads);
}

int ThreadIndex() { return thread_index; }

void ParallelFor(int64_t pieces, PieceFunction body) {
  HEED_DCHECK(pieces < (int64_t{1} << 32));
  if (pieces <= 0) return;
  Team* team = pieces == 1 || inside_piece ? nullptr : TheTeam().get();
  if (team == nullptr || team->size() == 1) {
    for (int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  team->Run(pieces, body);
}

}  // namespace heed
