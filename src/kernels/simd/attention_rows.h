// Which rows of queries a piece of attention's work has, which keys they see, where they lie, and
// what is asked for ahead of them: the same for every instruction set. For attention.cc alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/buffer.h"
#include "base/parallel.h"
#include "kernels/args.h"

namespace heed::simd {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Keys in a tile. Tiles start at multiples of it, whatever is computed.
constexpr int64_t kTile = 64;
// Rows of a block, the unit that shares loads of a tile.
constexpr int64_t kBlock = 6;
// Rows of a forward piece; what packing a key tile is spread over.
constexpr int64_t kForwardRows = 192;
// Rows whose weights backward holds at a time.
constexpr int64_t kBackwardRows = 96;
// Backward pieces wanted at least, when there are few key/value heads.
constexpr int64_t kLeastPieces = 8;
// Head widths up to this are computed with queries, not keys, in the lanes of a vector.
constexpr int64_t kSmallWidth = 4;
// Multiplications below which a piece is not worth handing to another thread.
constexpr int64_t kPieceWork = 1 << 17;

// The calling thread's memory, cut into arrays aligned to 64 bytes; valid until the next Scratch.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    thread_local Buffer buffer;
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float) + kArrays * 64;
    if (buffer.size() < bytes) buffer = Buffer(bytes);
    next_ = buffer.floats();
  }
  float* Take(int64_t floats) {
    float* taken = next_;
    next_ += (floats + 15) / 16 * 16;
    return taken;
  }

 private:
  static constexpr size_t kArrays = 20;  // at most so many Takes, each rounded up to 64 bytes
  float* next_;
};

// The rows of one key/value head: row r is query t0 + r / heads of head h0 + r % heads.
struct Rows {
  int64_t b, h0, heads, t0, count;
  // Dividing costs more than the rest of a row's bookkeeping.
  int64_t t(int64_t r) const { return t0 + (heads == 1 ? r : r / heads); }
  int64_t h(int64_t r) const { return h0 + (heads == 1 ? 0 : r % heads); }
};

// Query t sees the keys First(t) <= s < Last(t); both can be below 0.
struct Sight {
  int64_t shift, window;
  Sight(const AttentionArgs<>& a, int64_t b)
      : shift((a.lengths ? a.lengths[b] : a.S) - a.T_ + 1), window(a.window) {}
  int64_t Last(int64_t t) const { return t + shift; }
  int64_t First(int64_t t) const { return window > 0 ? t + shift - window : 0; }
};

inline const float* QueryRow(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return a.q + rows.b * a.q_batch + rows.t(r) * a.q_row + rows.h(r) * a.D;
}

// Offset of rows' key/value head at key 0.
inline int64_t KeyOffset(const AttentionArgs<>& a, const Rows& rows) {
  return rows.b * a.kv_batch + rows.h0 / (a.H / a.Hkv) * a.kv_head;
}

// Row r's place in z and dz.
inline int64_t OutputOffset(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return ((rows.b * a.T_ + rows.t(r)) * a.H + rows.h(r)) * a.D;
}

// Row r's place in lse; times S, the dropout index of its weight for key 0.
inline int64_t RowIndex(const AttentionArgs<>& a, const Rows& rows, int64_t r) {
  return (rows.b * a.H + rows.h(r)) * a.T_ + rows.t(r);
}

// Asks for what the item after the current one will read and write, a few rows at each of `steps`
// steps: a head's rows lie far apart, but in a cache, and whoever is first waits for memory.
class Ahead {
 public:
  // `rows` are the next item's. Forward writes z; backward reads it and dz, and writes gradients.
  Ahead(const AttentionArgs<>& a, const Rows& rows, bool backward, int64_t steps)
      : a_(a), rows_(rows), backward_(backward), keys_(a.k + KeyOffset(a, rows)) {
    const int64_t all = rows.count + a.S;
    if (a.kv_row > a.D && all * a.D <= kMaxAhead) per_step_ = (all + steps - 1) / steps;
    writes_ = all * a.D <= kMaxAhead / 2;
  }
  void Step() {
    for (int64_t end = next_ + per_step_; next_ < end; ++next_) {
      if (next_ < rows_.count) {
        const float* query = QueryRow(a_, rows_, next_);
        Fetch(query);
        if (backward_ || writes_) Fetch(a_.z + OutputOffset(a_, rows_, next_));
        if (backward_) Fetch(a_.dz + OutputOffset(a_, rows_, next_));
        if (backward_ && writes_) Fetch(a_.dq + (query - a_.q));
      } else if (next_ < rows_.count + a_.S) {
        const int64_t offset = (next_ - rows_.count) * a_.kv_row;
        Fetch(keys_ + offset);
        Fetch(keys_ + (a_.v - a_.k) + offset);
        if (!backward_ || !writes_) continue;
        Fetch(a_.dk + (keys_ - a_.k) + offset);
        Fetch(a_.dv + (keys_ - a_.k) + offset);
      }
    }
  }

 private:
  // Numbers: with z, dz and v some 300 KiB. Half as many leave room for what is written.
  static constexpr int64_t kMaxAhead = 1 << 15;

  void Fetch(const float* row) const {
    for (int64_t i = 0; i < a_.D; i += 16) __builtin_prefetch(row + i, 0, 2);
  }

  const AttentionArgs<>& a_;
  Rows rows_;
  bool backward_, writes_;
  const float* keys_;
  int64_t per_step_ = 0, next_ = 0;
};

// Runs items in pieces of at least kPieceWork multiplications.
template <class Body>
void ForItems(int64_t items, int64_t work_per_item, const Body& body) {
  const int64_t per_piece =
      std::clamp<int64_t>(kPieceWork / std::max<int64_t>(1, work_per_item), 1, items);
  ParallelFor((items + per_piece - 1) / per_piece, [&](int64_t piece) {
    const int64_t end = std::min(items, (piece + 1) * per_piece);
    for (int64_t item = piece * per_piece; item < end; ++item) body(item);
  });
}

}  // namespace
}  // namespace heed::simd
