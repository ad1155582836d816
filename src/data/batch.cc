#include "data/batch.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace heed {
namespace {

void Resize(int64_t B, int64_t T, Batch* batch) {
  batch->B = B;
  batch->T = T;
  batch->tokens.resize(static_cast<size_t>(B * T));
  batch->targets.resize(static_cast<size_t>(B * T));
}

}  // namespace

void BatchSource::TrainBatch(uint64_t seed, int64_t step, int64_t B, Batch* out,
                             int64_t first_row) const {
  Resize(B, block(), out);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t at = b * out->T;
    TrainRow(seed, step, first_row + b, &out->tokens[at], &out->targets[at]);
  }
}

void BatchSource::ValBatch(int64_t first, int64_t count, int64_t wanted, Batch* out) const {
  const int64_t windows = std::min(wanted, ValWindows());
  HEED_DCHECK(first >= 0 && count >= 0 && first + count <= windows);
  Resize(count, block(), out);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t at = b * out->T;
    ValRow(first + b, windows, &out->tokens[at], &out->targets[at]);
  }
}

std::optional<LossFloor> BatchSource::loss_floor(int64_t) const { return std::nullopt; }

TextBatches::TextBatches(TokenStore store, Split split, int64_t block_size, int64_t vocab_size)
    : store_(std::move(store)), split_(split), block_size_(block_size), vocab_size_(vocab_size) {
  HEED_DCHECK(std::min(split.train, split.val) > block_size);
}

int64_t TextBatches::ValWindows() const {
  const int64_t targets = split_.val - 1;
  return (targets + block_size_ - 1) / block_size_;
}

TextBatches::Window TextBatches::ValWindow(int64_t window, int64_t windows) const {
  const int64_t last = split_.val - 1 - block_size_;  // where the last whole window begins
  if (windows < ValWindows()) {
    // Steps of at least block_size, because windows · block_size fits into the targets.
    return {split_.train + (windows == 1 ? 0 : last * window / (windows - 1)), 0};
  }
  // Side by side; the last one is moved back until it is whole.
  const int64_t begin = std::min(window * block_size_, last);
  return {split_.train + begin, window * block_size_ - begin};
}

void TextBatches::ReadWindow(int64_t begin, int32_t* tokens, int32_t* targets) const {
  store_.Read(begin, block_size_, tokens);
  store_.Read(begin + 1, block_size_, targets);
}

void TextBatches::TrainRow(uint64_t seed, int64_t step, int64_t row, int32_t* tokens,
                           int32_t* targets) const {
  const RandomKey key{seed, static_cast<uint32_t>(step), kBatchStream};
  const uint64_t places = static_cast<uint64_t>(split_.train - block_size_);
  ReadWindow(static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(row), places)), tokens,
             targets);
}

void TextBatches::ValRow(int64_t window, int64_t windows, int32_t* tokens, int32_t* targets) const {
  const Window place = ValWindow(window, windows);
  ReadWindow(place.begin, tokens, targets);
  std::fill(targets, targets + place.counted_before, -1);
}

}  // namespace heed
