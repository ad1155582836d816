// A training run of a few milliseconds, with everything that a run has.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/metrics.h"
#include "model/folder.h"
#include "support/shell.h"
#include "text/char_tokenizer.h"
#include "train/trainer.h"

namespace heed {

// Pseudo-random words of a small alphabet: text with something to learn.
inline std::string TinyText(uint64_t seed = 3, int64_t words = 400) {
  const char* const kWords[] = {"red ",   "blue ", "stone ", "over ",
                                "under ", "a ",    "long ",  "river\n"};
  std::string text;
  for (int64_t i = 0; i < words; ++i) text += kWords[RandomBelow({seed, 0, kTextStream}, i, 8)];
  return text;
}

struct TinyRun {
  TemporaryFolder folder;
  TrainSettings settings;
  std::unique_ptr<CharTokenizer> tokenizer;
  std::unique_ptr<TextBatches> source;
  std::unique_ptr<Gpt> model;
  std::unique_ptr<Trainer> trainer;
  TrainEvents events;

  explicit TinyRun(const std::string& text = TinyText(), int64_t block = kBlock) {
    settings.batch_size = 3;
    settings.max_iters = 12;
    settings.learning_rate = 1e-2;
    settings.warmup_iters = 3;
    settings.eval_interval = 4;
    settings.eval_iters = 2;
    settings.log_interval = 1;
    settings.checkpoint_interval = 4;
    tokenizer = *CharTokenizer::FromText(text);
    const Corpus corpus = Corpus::FromString("tiny", text);
    TokenStore store = *TokenStore::Make(corpus, *tokenizer, {});
    const Split split = *SplitTokens(store.size(), 0.1, block, "tiny");
    source = std::make_unique<TextBatches>(std::move(store), split, block, tokenizer->vocab_size());
  }

  // After the settings are as wanted.
  void Make(const Kernels& kernels = SimdKernels(), double dropout = 0, int64_t n_layer = 2) {
    ASSERT_TRUE(settings.Resolve());
    ModelConfig config;
    config.n_layer = n_layer;
    config.n_head = 2;
    config.n_embd = 12;
    config.block_size = kBlock;
    config.vocab_size = tokenizer->vocab_size();
    config.dropout = dropout;
    model = *Gpt::Create(config, kernels);
    model->Initialize(4);
    trainer = *Trainer::Create(model.get(), *tokenizer, *source, settings, 11, folder.path());
  }

  Result<TrainOutcome> Run() { return trainer->Run(events); }

  // Runs until `iteration`, then is told to stop.
  Result<TrainOutcome> RunUntil(int64_t iteration) {
    TrainEvents stopping = events;
    stopping.should_stop = [&] { return trainer->iteration() >= iteration; };
    return trainer->Run(stopping);
  }

  std::string ModelBytes() const { return ReadText(folder / "model.safetensors"); }
  // The lines of metrics.jsonl without what a clock says.
  std::string Metrics() const {
    std::string text;
    const auto rows = ReadMetrics(folder / "metrics.jsonl");
    EXPECT_TRUE(rows) << rows.error().Message();
    for (MetricsRow row : *rows) {
      row.tokens_per_second = row.elapsed_s = 0;
      text += MetricsLine(row);
    }
    return text;
  }

  static constexpr int64_t kBlock = 8;
};

// A straight run, and one stopped at `stop` and resumed by a new process's worth of objects, after
// `between` has had the folder. Counts what differs: weights, metrics.
inline int ResumeDifferences(const std::function<void(TinyRun*)>& configure, double dropout,
                             int64_t stop,
                             const std::function<void(const std::string& folder)>& between = {}) {
  TinyRun straight, stopped;
  configure(&straight);
  configure(&stopped);
  straight.Make(SimdKernels(), dropout);
  EXPECT_TRUE(straight.Run());
  stopped.Make(SimdKernels(), dropout);
  const auto outcome = stopped.RunUntil(stop);
  EXPECT_TRUE(outcome && outcome->stopped);
  if (between) between(stopped.folder.path());
  stopped.Make(SimdKernels(), dropout);
  stopped.model->Initialize(99);  // nothing of the fresh weights may stay
  EXPECT_TRUE(stopped.trainer->Resume());
  EXPECT_EQ(stopped.trainer->iteration(), stop);
  EXPECT_TRUE(stopped.Run());
  EXPECT_FALSE(straight.ModelBytes().empty());
  return (straight.ModelBytes() != stopped.ModelBytes()) +
         (straight.Metrics() != stopped.Metrics());
}

}  // namespace heed
