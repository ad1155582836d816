// One team of threads for the whole program. Work is cut by index into pieces whose number does
// not depend on the team's size, each piece is computed whole by one member, and sums over pieces
// are taken in index order by the caller: so no bit of any result depends on the thread count.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

namespace heed {

// A non-owning reference to a callable taking a piece's index.
class PieceFunction {
 public:
  template <class F>
  PieceFunction(const F& f)  // NOLINT: implicit by design
      : object_(std::addressof(f)),
        call_([](const void* object, int64_t piece) { (*static_cast<const F*>(object))(piece); }) {}
  void operator()(int64_t piece) const { call_(object_, piece); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t);
};

// Calls body(0) .. body(pieces - 1), each once, on the team, and returns when all are done. Runs
// inline when there is one piece, one thread, or when called from inside a piece. Members start on
// contiguous ranges and take from others' ends when their own is done.
void ParallelFor(int64_t pieces, PieceFunction body);

// Sets the team's size (at least 1), or as much of it as the system gives; not to be called from
// inside a piece.
void SetNumThreads(int threads);
int NumThreads();

// The number of processors that this process may use, of which its control group grants the time.
int HardwareThreads();

// The processors whose time a control group grants, rounded up; 0 where it sets no limit. `folder`
// holds the files of version 2 or 1: a container often sees every processor and gets a few's time,
// and the threads beyond those would keep the others waiting.
int GrantedProcessors(const std::string& folder);

// The calling member's index in [0, NumThreads()), for scratch buffers; 0 outside a piece.
int ThreadIndex();

}  // namespace heed
