// Batches of token windows for training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/corpus.h"

namespace heed {

struct Batch {
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens;   // [B, T]
  std::vector<int32_t> targets;  // [B, T]: the token after each, or -1 where none counts
};

// The least mean loss that any model can be expected to reach, when the process that made the text
// is known.
struct LossFloor {
  double nats_per_token = 0;
  double standard_error = 0;  // of the floor over windows: how much other windows would differ
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int64_t block() const = 0;  // T
  virtual int64_t vocab_size() const = 0;
  virtual int64_t train_tokens() const = 0;
  virtual int64_t val_tokens() const = 0;

  // Rows first_row .. first_row + B - 1 of the batch of `step`: a function of (seed, step, row)
  // alone, so a run resumes at any step, and accumulated batches of B rows are one batch of more.
  void TrainBatch(uint64_t seed, int64_t step, int64_t B, Batch* out, int64_t first_row = 0) const;

  // How many windows hold every validation target once. Their losses are to be weighted by their
  // targets: the last window may have fewer.
  virtual int64_t ValWindows() const = 0;
  // Windows first .. first + count - 1 of min(wanted, ValWindows()), which are always the same:
  // spread evenly over the validation split, without overlap in their targets.
  void ValBatch(int64_t first, int64_t count, int64_t wanted, Batch* out) const;
  // The floor of the mean loss over those windows; nothing when it is not known.
  virtual std::optional<LossFloor> loss_floor(int64_t wanted) const;

 protected:
  // One row: tokens [T] and targets [T].
  virtual void TrainRow(uint64_t seed, int64_t step, int64_t row, int32_t* tokens,
                        int32_t* targets) const = 0;
  virtual void ValRow(int64_t window, int64_t windows, int32_t* tokens, int32_t* targets) const = 0;
};

// Windows of one long text: tokens = data[i : i+T], targets = data[i+1 : i+T+1].
class TextBatches : public BatchSource {
 public:
  // `split` holds at least block_size + 1 tokens on each side (SplitTokens).
  TextBatches(TokenStore store, Split split, int64_t block_size, int64_t vocab_size);

  int64_t block() const override { return block_size_; }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t train_tokens() const override { return split_.train; }
  int64_t val_tokens() const override { return split_.val; }
  int64_t ValWindows() const override;
  // Tokens begin .. begin + n - 1 of the training text, all within train_tokens().
  void ReadTraining(int64_t begin, int64_t n, int32_t* out) const { store_.Read(begin, n, out); }

  // The same of the held-out text, within val_tokens().
  void ReadHeldOut(int64_t begin, int64_t n, int32_t* out) const {
    store_.Read(split_.train + begin, n, out);
  }

  // Where a validation window stands: its first token in the store, and how many of its first
  // targets belong to the window before it.
  struct Window {
    int64_t begin = 0;
    int64_t counted_before = 0;
  };
  Window ValWindow(int64_t window, int64_t windows) const;

 protected:
  void TrainRow(uint64_t seed, int64_t step, int64_t row, int32_t* tokens,
                int32_t* targets) const override;
  void ValRow(int64_t window, int64_t windows, int32_t* tokens, int32_t* targets) const override;

 private:
  void ReadWindow(int64_t begin, int32_t* tokens, int32_t* targets) const;

  TokenStore store_;
  Split split_;
  int64_t block_size_;
  int64_t vocab_size_;
};

}  // namespace heed
