#include "baseline/counting.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace heed {
namespace {

// Tokens read from the store at a time.
constexpr int64_t kPiece = 1 << 20;
// Tokens after which the first row with counts comes, at most.
constexpr int64_t kFirstRow = 1000;

// The mean loss per target over the rows of batches, each a text of its own.
class WindowLoss {
 public:
  explicit WindowLoss(const Ngram& model) : model_(model) {}

  void Add(const Batch& batch) {
    for (int64_t at = 0; at < batch.B * batch.T; ++at) {
      if (batch.targets[at] < 0) continue;
      const std::span<const int32_t> seen(&batch.tokens[at / batch.T * batch.T],
                                          static_cast<size_t>(at % batch.T + 1));
      sum_ -= std::log(model_.Probability(seen, batch.targets[at]));
      ++targets_;
    }
  }
  double mean() const { return sum_ / static_cast<double>(targets_); }

 private:
  const Ngram& model_;
  double sum_ = 0;
  int64_t targets_ = 0;
};

MetricsRow Measure(const Ngram& model, const TextBatches& text, const CountingSettings& counting) {
  MetricsRow row;
  const int64_t wanted = counting.batch_size * counting.eval_iters;
  Batch batch;
  WindowLoss train(model), val(model);
  text.TrainBatch(counting.seed, 0, wanted, &batch);
  train.Add(batch);
  row.train_loss = train.mean();
  row.perplexity = std::exp(row.train_loss);
  if (const int64_t windows = std::min(text.ValWindows(), wanted); windows > 0) {
    text.ValBatch(0, windows, windows, &batch);
    val.Add(batch);
    row.val_loss = val.mean();
    row.val_perplexity = std::exp(*row.val_loss);
  }
  if (const auto floor = text.loss_floor(wanted)) row.val_floor = floor->nats_per_token;
  return row;
}

}  // namespace

Result<Ngram> CountText(const TextBatches& text, const NgramSettings& settings,
                        const CountingSettings& counting,
                        const std::function<Status(const MetricsRow&)>& on_row) {
  HEED_TRY(settings.Validate());
  Ngram model(settings, text.vocab_size());
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  const auto start = Clock::now();
  Clock::duration counting_time{};
  int64_t next_row = 0;
  const int64_t tokens = text.train_tokens(), batch_tokens = counting.batch_size * text.block();
  std::vector<int32_t> piece;
  for (int64_t counted = 0;;) {
    if (counted == next_row || counted == tokens) {
      const auto before = Clock::now();
      model.Estimate();
      counting_time += Clock::now() - before;
      MetricsRow row = Measure(model, text, counting);
      row.tokens = counted;
      row.iter = counted / batch_tokens;
      row.elapsed_s = seconds(Clock::now() - start);
      row.tokens_per_second =
          counted > 0 ? static_cast<double>(counted) / seconds(counting_time) : 0;
      HEED_TRY(on_row(row));
      if (counted == tokens) return model;
      next_row = counted == 0 ? std::min(kFirstRow, tokens) : 2 * counted;
    }
    // The last tokens counted come once more, as context.
    const int64_t end = std::min({tokens, next_row, counted + kPiece});
    const int64_t begin = std::max<int64_t>(0, counted - settings.order + 1);
    const auto before = Clock::now();
    piece.resize(static_cast<size_t>(end - begin));
    text.ReadTraining(begin, end - begin, piece.data());
    model.Count(piece, counted - begin);
    counting_time += Clock::now() - before;
    counted = end;
  }
}

}  // namespace heed
