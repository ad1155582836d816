// Runs: that a stop changes nothing, that what is written is right, and that what is wrong is said.
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "base/parallel.h"
#include "io/safetensors.h"
#include "support/tiny_run.h"

namespace heed {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void Plain(TinyRun*) {}
void Accumulating(TinyRun* run) { run->settings.grad_accum = 2; }
void Overfitting(TinyRun* run) { run->settings.overfit_batch = true; }
void Muon(TinyRun* run) { run->settings.optimizer = Optimizer::kMuon; }
void Unclipped(TinyRun* run) { run->settings.grad_clip = 0; }

// At a checkpoint, between two, at the first and before the last update.
TEST(Resume, AStoppedRunIsTheStraightRun) {
  SetNumThreads(1);
  for (const int64_t stop : {0, 1, 4, 6, 11}) {
    EXPECT_EQ(ResumeDifferences(Plain, 0, stop), 0) << stop;
    EXPECT_EQ(ResumeDifferences(Accumulating, 0.2, stop), 0) << stop << ", dropout, accumulation";
  }
  EXPECT_EQ(ResumeDifferences(Overfitting, 0.2, 5), 0);
  EXPECT_EQ(ResumeDifferences(Muon, 0, 5), 0);
  EXPECT_EQ(ResumeDifferences(Unclipped, 0.2, 5), 0);
}

// A kill leaves rows that the last checkpoint does not know, and perhaps half a row.
TEST(Resume, RowsAfterTheCheckpointAreWrittenAnew) {
  EXPECT_EQ(ResumeDifferences(Plain, 0, 6,
                              [](const std::string& folder) {
                                const std::string path = folder + "/metrics.jsonl";
                                const std::string rows = ReadText(path);
                                MetricsRow row = ReadMetrics(path)->back();
                                row.iter = 6;
                                row.train_loss = 99;
                                WriteText(path, rows + MetricsLine(row) + R"({"iter":7,"trai)");
                              }),
            0);
}

TEST(Runs, ThreadsChangeNoByte) {
  for (const double dropout : {0.0, 0.2}) {
    std::vector<std::string> bytes, metrics;
    for (const int threads : {1, 2, 3}) {
      SetNumThreads(threads);
      TinyRun run;
      run.settings.grad_accum = 2;
      if (dropout > 0) Muon(&run);
      run.Make(SimdKernels(), dropout);
      ASSERT_TRUE(run.Run());
      bytes.push_back(run.ModelBytes());
      metrics.push_back(run.Metrics());
    }
    SetNumThreads(1);
    EXPECT_FALSE(bytes[0].empty());
    EXPECT_TRUE(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
    EXPECT_EQ(metrics[0], metrics[1]);
    EXPECT_EQ(metrics[0], metrics[2]);
  }
}

// What an evaluation sees.
struct Seen {
  double train_loss;
  std::vector<float> weights;

  bool operator==(const Seen&) const = default;
};

std::vector<Seen> SeenBy(TinyRun* run) {
  std::vector<Seen> seen;
  run->events.on_evaluation = [&](const MetricsRow& row) -> Status {
    const Parameter& p = *run->model->parameters().Find("h.1.mlp.c_fc.weight");
    seen.push_back({row.train_loss, {p.values, p.values + p.elements}});
    return {};
  };
  EXPECT_TRUE(run->Run());
  return seen;
}

// Then weights take their steps in the pass backward, one after another in the same memory.
TEST(Unclipped, IsTheRunThatAHighBoundDoesNotTouch) {
  SetNumThreads(2);
  for (const double dropout : {0.0, 0.2}) {
    TinyRun unclipped, bounded;
    Unclipped(&unclipped);
    bounded.settings.grad_clip = 1e30;
    unclipped.Make(SimdKernels(), dropout);
    bounded.Make(SimdKernels(), dropout);
    EXPECT_LT(unclipped.trainer->planned_bytes(), bounded.trainer->planned_bytes());
    EXPECT_EQ(SeenBy(&unclipped), SeenBy(&bounded));
    EXPECT_TRUE(unclipped.ModelBytes() == bounded.ModelBytes());
    const auto rows = ReadMetrics(unclipped.folder / "metrics.jsonl");
    const auto want = ReadMetrics(bounded.folder / "metrics.jsonl");
    ASSERT_EQ(rows->size(), want->size());
    for (size_t i = 0; i < rows->size(); ++i) {
      EXPECT_EQ((*rows)[i].train_loss, (*want)[i].train_loss);
      EXPECT_EQ((*rows)[i].val_loss, (*want)[i].val_loss);
      // Squares are summed in another order.
      EXPECT_NEAR((*rows)[i].grad_norm, (*want)[i].grad_norm, 1e-12 * (*want)[i].grad_norm);
    }
  }
  SetNumThreads(1);
}

std::string RefusalOf(const Status& status) {
  EXPECT_FALSE(status) << "accepted";
  return status ? "" : status.error().Message();
}

TEST(Resume, WithoutACheckpointIsRefused) {
  TinyRun run;
  run.Make();
  EXPECT_THAT(RefusalOf(run.trainer->Resume()), HasSubstr("no checkpoint"));
}

TEST(Resume, ADamagedCheckpointIsRefused) {
  TinyRun run;
  run.Make();
  ASSERT_TRUE(run.RunUntil(2));
  const std::string path = run.folder / "checkpoint/state.safetensors";
  const std::string whole = ReadText(path);
  ASSERT_GT(whole.size(), 1000u);
  const std::vector<std::string> damaged = {"",
                                            whole.substr(0, 7),
                                            whole.substr(0, 500),
                                            whole.substr(0, whole.size() - 1),
                                            whole + "x",
                                            std::string(whole.size(), '\xff')};
  for (const std::string& bytes : damaged) {
    WriteText(path, bytes);
    EXPECT_THAT(RefusalOf(run.trainer->Resume()), HasSubstr("state.safetensors")) << bytes.size();
  }
  WriteText(path, whole);
  EXPECT_TRUE(run.trainer->Resume());
}

TEST(Resume, OtherDataIsRefused) {
  TinyRun run, other(TinyText(4));
  run.Make();
  ASSERT_TRUE(run.RunUntil(2));
  other.Make();
  std::filesystem::copy(run.folder.path(), other.folder.path(),
                        std::filesystem::copy_options::recursive);
  EXPECT_THAT(RefusalOf(other.trainer->Resume()), HasSubstr("other data"));
}

// A checkpoint of more layers has every tensor that a smaller model asks for.
TEST(Resume, AnotherModelIsRefusedWhetherDeeperOrShallower) {
  for (const auto& [saved, resumed] : {std::pair{2, 3}, {3, 2}}) {
    TinyRun run;
    run.Make(SimdKernels(), 0, saved);
    ASSERT_TRUE(run.RunUntil(2));
    run.Make(SimdKernels(), 0, resumed);
    EXPECT_THAT(RefusalOf(run.trainer->Resume()), HasSubstr("this run's model")) << saved;
  }
}

// ---- Rows

TEST(Metrics, RowsSayWhatHappened) {
  TinyRun run;
  run.settings.grad_accum = 2;
  run.settings.log_interval = 5;
  run.Make();
  // By hand, before the first update: the batch of step 0 with all its rows, and the windows.
  Batch batch;
  run.source->TrainBatch(11, 0, 6, &batch);
  auto activations = *Activations::Create(*run.model, 6, TinyRun::kBlock, false);
  const auto mean_loss = [&](const Batch& b) {
    return run.model->Loss(run.model->NewPass(b.B, b.T), b.tokens.data(), b.targets.data(),
                           activations.get()) /
           static_cast<double>(b.B * b.T);
  };
  const double first_loss = mean_loss(batch);
  ASSERT_GT(run.source->ValWindows(), 6);
  run.source->ValBatch(0, 6, 6, &batch);
  const double first_val = mean_loss(batch);
  std::vector<int64_t> seen;
  run.events.on_iteration = [&](const MetricsRow& row) { seen.push_back(row.iter); };
  const auto outcome = run.Run();
  ASSERT_TRUE(outcome);
  EXPECT_EQ(seen.size(), 13u);

  const std::vector<MetricsRow> rows = *ReadMetrics(run.folder / "metrics.jsonl");
  std::vector<int64_t> iters;
  double best = HUGE_VAL;
  for (const MetricsRow& row : rows) {
    iters.push_back(row.iter);
    EXPECT_EQ(row.tokens, row.iter * 2 * 3 * TinyRun::kBlock);
    EXPECT_DOUBLE_EQ(row.perplexity, std::exp(row.train_loss));
    EXPECT_DOUBLE_EQ(row.lr, run.settings.schedule().At(row.iter));
    EXPECT_GT(row.grad_norm, 0);
    EXPECT_GT(row.tokens_per_second, 0);
    EXPECT_EQ(row.val_loss.has_value(), row.iter % 4 == 0) << row.iter;
    if (row.val_loss) {
      EXPECT_DOUBLE_EQ(*row.val_perplexity, std::exp(*row.val_loss));
      best = std::min(best, *row.val_loss);
    }
  }
  EXPECT_EQ(iters, (std::vector<int64_t>{0, 4, 5, 8, 10, 12}));
  EXPECT_NEAR(rows[0].train_loss, first_loss, 1e-6 * first_loss);
  EXPECT_NEAR(*rows[0].val_loss, first_val, 1e-6 * first_val);
  EXPECT_EQ(outcome->best_val_loss, best);
  EXPECT_LT(rows.back().train_loss, rows[0].train_loss - 0.1);
  // The last row speaks of the model in the folder.
  const auto loaded = LoadModel(run.folder.path(), SimdKernels());
  ASSERT_TRUE(loaded);
  const double last_val =
      loaded->model->Loss(loaded->model->NewPass(batch.B, batch.T), batch.tokens.data(),
                          batch.targets.data(), activations.get()) /
      static_cast<double>(batch.B * batch.T);
  EXPECT_NEAR(last_val, *rows.back().val_loss, 1e-6);
  EXPECT_EQ((*loaded->tokenizer)->Fingerprint(), run.tokenizer->Fingerprint());
}

TEST(Metrics, HeldOutWindowsAreTheSameForEverySeed) {
  std::vector<double> train, held_out;
  for (const uint64_t seed : {1, 2}) {
    TinyRun run;
    run.Make();
    run.trainer = *Trainer::Create(run.model.get(), *run.tokenizer, *run.source, run.settings, seed,
                                   run.folder.path());
    ASSERT_TRUE(run.RunUntil(1));
    const MetricsRow row = ReadMetrics(run.folder / "metrics.jsonl")->front();
    train.push_back(row.train_loss);
    held_out.push_back(*row.val_loss);
  }
  EXPECT_NE(train[0], train[1]);
  EXPECT_EQ(held_out[0], held_out[1]);
}

TEST(Runs, OneBatchIsLearntByHeart) {
  TinyRun run;
  run.settings.overfit_batch = true;
  run.settings.max_iters = 200;
  run.settings.eval_interval = run.settings.checkpoint_interval = 200;
  run.Make();
  const auto outcome = run.Run();
  ASSERT_TRUE(outcome);
  EXPECT_LT(outcome->last.train_loss, 0.1);
  EXPECT_GT(*outcome->last.val_loss, 0.5) << "the batch alone was to be learnt";
}

// ---- Numbers that are not finite

// The loss of the batch in nonfinite/ on the model there.
double ReplayedLoss(const TinyRun& run) {
  const auto loaded = LoadModel(run.folder / "nonfinite", SimdKernels());
  const auto file = SafetensorsFile::Open(run.folder / "nonfinite/batch.safetensors");
  if (!loaded || !file) {
    ADD_FAILURE() << "nothing to replay";
    return 0;
  }
  const std::vector<int64_t> shape = file->Find("tokens")->shape;
  const std::vector<int64_t> tokens = *file->Integers("tokens"),
                             targets = *file->Integers("targets");
  const std::vector<int32_t> in(tokens.begin(), tokens.end()), out(targets.begin(), targets.end());
  auto activations = *Activations::Create(*loaded->model, shape[0], shape[1], false);
  return loaded->model->Loss(loaded->model->NewPass(shape[0], shape[1]), in.data(), out.data(),
                             activations.get());
}

TEST(NonFinite, AnInfiniteWeightIsNamed) {
  TinyRun run;
  run.Make();
  run.model->parameters().Find("h.1.mlp.c_fc.weight")->data[17] =
      std::numeric_limits<float>::infinity();
  const auto outcome = run.Run();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::kNumeric);
  EXPECT_THAT(outcome.error().Message(),
              AllOf(HasSubstr("step 0"), HasSubstr("h.1.mlp.c_fc.weight"), HasSubstr("17")));
  EXPECT_FALSE(std::isfinite(ReplayedLoss(run)));
}

// Activations in bfloat16 are read as such.
TEST(NonFinite, AnActivationInBf16IsNamed) {
  TinyRun run;
  run.Make();
  TrainSettings bf16 = run.settings;
  bf16.dtype = Arithmetic::kBf16;
  // Large but finite: what a normed input above 1.2 makes of it is not.
  run.model->parameters().Find("h.1.mlp.c_fc.weight")->data[17] = 3e38f;
  run.trainer =
      *Trainer::Create(run.model.get(), *run.tokenizer, *run.source, bf16, 11, run.folder.path());
  const auto outcome = run.Run();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::kNumeric);
  EXPECT_THAT(outcome.error().Message(), HasSubstr("activation h.1.mlp.h at index"));
}

TEST(NonFinite, AnAbsurdLearningRateIsFoundAtTheStepAfterIt) {
  TinyRun run;
  run.Make();
  TrainSettings absurd = run.settings;
  absurd.learning_rate = 1e30;
  absurd.warmup_iters = 0;
  run.trainer =
      *Trainer::Create(run.model.get(), *run.tokenizer, *run.source, absurd, 11, run.folder.path());
  const auto outcome = run.Run();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::kNumeric);
  EXPECT_THAT(outcome.error().Message(), AllOf(HasSubstr("step 1"), HasSubstr("at index")));
  EXPECT_FALSE(std::isfinite(ReplayedLoss(run)));
  // The checkpoint is older than the fault, and goes on.
  run.Make();
  EXPECT_TRUE(run.trainer->Resume());
  EXPECT_TRUE(run.Run());
}

TEST(NonFinite, AnUnclippedGradientHasNoReplay) {
  Kernels kernels = SimdKernels();
  kernels.sum_squares = [](const float*, int64_t) {
    return std::numeric_limits<double>::infinity();
  };
  TinyRun run;
  Unclipped(&run);
  run.Make(kernels);
  const auto outcome = run.Run();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::kNumeric);
  EXPECT_THAT(outcome.error().Message(), AllOf(HasSubstr("step 0"), HasSubstr("--grad-clip 1")));
  EXPECT_FALSE(std::filesystem::exists(run.folder / "nonfinite"));
}

// The micro-batch that went wrong may be any of them.
TEST(NonFinite, EveryMicroBatchIsKept) {
  TinyRun run;
  run.settings.grad_accum = 3;
  run.Make();
  run.model->parameters().Find("ln_f.bias")->data[2] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_FALSE(run.Run());
  Batch all;
  run.source->TrainBatch(11, 0, 9, &all);
  const auto file = SafetensorsFile::Open(run.folder / "nonfinite/batch.safetensors");
  ASSERT_TRUE(file);
  const std::vector<int64_t> tokens = *file->Integers("tokens");
  EXPECT_EQ(file->Find("tokens")->shape, (std::vector<int64_t>{9, TinyRun::kBlock}));
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), all.tokens.begin(), all.tokens.end()));
}

// ---- No room

// In a child that may write no file past `limit` bytes: the exit code says how the run ended.
int RunWithFileLimit(TinyRun* run, rlim_t limit) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit room{limit, limit};
    setrlimit(RLIMIT_FSIZE, &room);
    const auto outcome = run->Run();
    _exit(outcome ? 0 : outcome.error().kind == ErrorKind::kIo ? 3 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(NoRoom, LeavesNoHalfFile) {
  SetNumThreads(1);  // a child has no team
  // Room for most of the checkpoint, then for nothing.
  for (const rlim_t limit : {rlim_t{40000}, rlim_t{100}}) {
    TinyRun run;
    run.Make();
    EXPECT_EQ(RunWithFileLimit(&run, limit), 3) << limit;
    // What fits is whole: a model, perhaps, but no checkpoint to go on from.
    const std::set<std::string> whole = {"metrics.jsonl", "config.json", "tokenizer.json",
                                         "model.safetensors"};
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run.folder.path())) {
      EXPECT_TRUE(entry.is_directory() || whole.contains(entry.path().filename().string()))
          << entry.path() << " after a failed first checkpoint";
    }
    if (std::filesystem::exists(run.folder / "model.safetensors")) {
      EXPECT_TRUE(LoadModel(run.folder.path(), SimdKernels()));
    }
  }
  // A model that was there stays as it was.
  TinyRun run;
  run.Make();
  ASSERT_TRUE(run.RunUntil(4));
  const std::string before = run.ModelBytes();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(RunWithFileLimit(&run, 40000), 3);
  EXPECT_EQ(run.ModelBytes(), before);
  run.Make();
  EXPECT_TRUE(run.trainer->Resume());
  EXPECT_TRUE(run.Run());
}

}  // namespace
}  // namespace heed
