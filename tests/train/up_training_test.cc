// Grouped queries out of a trained model (Ainslie et al. 2023): what conversion costs, and that a
// small share of the training wins it back.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/parallel.h"
#include "eval/perplexity.h"
#include "model/group_heads.h"
#include "support/tiny_run.h"

namespace heed {
namespace {

// A run of 6 heads; its model can be trained, grouped, and trained on.
class GroupedRun {
 public:
  static constexpr int64_t kUpdates = 400;

  explicit GroupedRun(uint64_t seed) {
    run_.settings.batch_size = 8;
    run_.settings.warmup_iters = 0;
    run_.settings.learning_rate = run_.settings.min_lr = 3e-3;
    EXPECT_TRUE(run_.settings.Resolve());
    ModelConfig config;
    config.n_layer = 2;
    config.n_head = 6;
    config.n_embd = 48;
    config.block_size = TinyRun::kBlock;
    config.vocab_size = run_.tokenizer->vocab_size();
    run_.model = *Gpt::Create(config, SimdKernels());
    run_.model->Initialize(seed);
    Train(kUpdates);
  }

  void Train(int64_t updates) {
    TrainSettings& s = run_.settings;
    s.max_iters = s.eval_interval = s.checkpoint_interval = updates;
    const std::string folder = run_.folder / std::to_string(updates);
    std::filesystem::create_directory(folder);
    run_.trainer =
        *Trainer::Create(run_.model.get(), *run_.tokenizer, *run_.source, s, /*seed=*/12, folder);
    EXPECT_TRUE(run_.Run());
  }
  std::unique_ptr<Gpt> Grouped(int64_t n_kv_head, HeadPooling how) const {
    return *GroupHeads(*run_.model, n_kv_head, how, /*seed=*/5);
  }
  void GoOnFrom(std::unique_ptr<Gpt> model) { run_.model = std::move(model); }

  // On a text of the same kind that no update saw.
  double Loss(const Gpt& model) const {
    const std::string text = TinyText(/*seed=*/8);
    const PlacedText placed{text, {}};
    return EvaluateTexts(model, *run_.tokenizer, {&placed, 1}, /*bos=*/false)->loss;
  }
  double Loss() const { return Loss(*run_.model); }

 private:
  TinyRun run_;
};

// In the mean over many models: which of two is better for one model is partly luck.
TEST(LessonRow28, MeanBeatsFirstBeatsRandom) {
  SetNumThreads(1);
  constexpr int kRuns = 24;
  double mean = 0, first = 0, random = 0, trained = 0;
  for (int seed = 1; seed <= kRuns; ++seed) {
    const GroupedRun run(seed);
    trained += run.Loss() / kRuns;
    mean += run.Loss(*run.Grouped(3, HeadPooling::kMean)) / kRuns;
    first += run.Loss(*run.Grouped(3, HeadPooling::kFirst)) / kRuns;
    random += run.Loss(*run.Grouped(3, HeadPooling::kRandom)) / kRuns;
  }
  EXPECT_LT(trained, mean - 0.1);
  EXPECT_LT(mean, first - 0.02);
  EXPECT_LT(first, random - 0.2);
}

TEST(LessonRow28, AShareOfTheUpdatesRecoversMostOfTheLoss) {
  SetNumThreads(1);
  GroupedRun run(/*seed=*/1);
  const double trained = run.Loss();
  run.GoOnFrom(run.Grouped(2, HeadPooling::kMean));
  const double converted = run.Loss();
  run.Train(GroupedRun::kUpdates / 20);
  const double recovered = (converted - run.Loss()) / (converted - trained);
  EXPECT_GT(converted, trained + 0.1);
  EXPECT_GT(recovered, 0.7);
}

}  // namespace
}  // namespace heed
