// Keys and values of past positions, for every layer, of exactly the size asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "model/gpt.h"

namespace heed {

class KvCache {
 public:
  // Room for `rows` sequences of `capacity` positions: 2 · n_layer · rows · n_kv_head · capacity ·
  // head_dim floats. Error: not enough memory.
  static Result<std::unique_ptr<KvCache>> Create(const ModelConfig& config, int64_t rows,
                                                 int64_t capacity);

  // Views of all layers for `B` neighbouring rows from `first` on, once each of the rows has been
  // given T more positions; sets *offsets to the positions that the rows held before.
  std::vector<KeyValueCache> Extend(int64_t first, int64_t B, int64_t T, const int32_t** offsets);

  void CopyRow(int64_t from, int64_t to);
  int64_t length(int64_t row) const { return lengths_[row]; }
  int64_t capacity() const { return capacity_; }
  size_t bytes() const { return buffer_.size(); }

 private:
  KvCache() = default;
  float* Row(int64_t layer, bool value, int64_t row);

  int64_t n_layer_ = 0, rows_ = 0, capacity_ = 0;
  int64_t row_elements_ = 0;  // n_kv_head · capacity · head_dim
  Buffer buffer_;             // [n_layer, 2, rows, n_kv_head, capacity, head_dim]
  std::vector<int32_t> lengths_, offsets_;
};

}  // namespace heed
