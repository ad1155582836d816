#include "infer/cache.h"

#include <fmt/format.h>

#include <algorithm>

namespace heed {

Result<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, int64_t rows,
                                                 int64_t capacity) {
  const double elements = 2.0 * static_cast<double>(config.n_layer * rows) *
                          static_cast<double>(config.n_kv_head * config.head_dim) *
                          static_cast<double>(capacity);
  std::unique_ptr<KvCache> cache(new KvCache);
  cache->n_layer_ = config.n_layer;
  cache->rows_ = rows;
  cache->capacity_ = capacity;
  cache->lengths_.resize(rows);
  cache->offsets_.resize(rows);
  if (MemoryHolds(elements * sizeof(float))) {
    cache->row_elements_ = config.n_kv_head * capacity * config.head_dim;
    cache->buffer_ = Buffer(static_cast<size_t>(elements) * sizeof(float));
  }
  if (cache->buffer_.data() == nullptr && elements > 0) {
    return BadRequest("memory",
                      fmt::format("{:.1f} MiB of key/value cache that the system does not give",
                                  elements * sizeof(float) / (1 << 20)),
                      "", "generate fewer samples or fewer tokens at once");
  }
  return cache;
}

float* KvCache::Row(int64_t layer, bool value, int64_t row) {
  return buffer_.floats() + ((layer * 2 + value) * rows_ + row) * row_elements_;
}

std::vector<KeyValueCache> KvCache::Extend(int64_t first, int64_t B, int64_t T,
                                           const int32_t** offsets) {
  for (int64_t row = first; row < first + B; ++row) {
    offsets_[row] = lengths_[row];
    lengths_[row] += static_cast<int32_t>(T);
  }
  *offsets = offsets_.data() + first;
  std::vector<KeyValueCache> layers;
  for (int64_t layer = 0; layer < n_layer_; ++layer) {
    layers.push_back(
        {Row(layer, false, first), Row(layer, true, first), capacity_, lengths_.data() + first});
  }
  return layers;
}

void KvCache::CopyRow(int64_t from, int64_t to) {
  if (from == to) return;
  for (int64_t layer = 0; layer < n_layer_; ++layer) {
    for (bool value : {false, true}) {
      std::copy_n(Row(layer, value, from), row_elements_, Row(layer, value, to));
    }
  }
  lengths_[to] = lengths_[from];
}

}  // namespace heed
