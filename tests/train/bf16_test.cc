#include <gtest/gtest.h>

#include "base/parallel.h"
#include "support/tiny_run.h"

namespace heed {
namespace {

TEST(TrainInBf16, TwoHundredUpdatesReachTheLossOfFloat32) {
  SetNumThreads(1);
  double losses[2];
  std::string models[2];
  for (const Arithmetic dtype : {Arithmetic::kF32, Arithmetic::kBf16}) {
    TinyRun run;
    run.settings.max_iters = 200;
    run.settings.learning_rate = 2e-3;  // at which neighbouring runs stay neighbours
    run.settings.eval_interval = 200;
    run.settings.eval_iters = 20;  // all that is held out
    run.settings.checkpoint_interval = 200;
    run.settings.dtype = dtype;
    run.Make();
    const auto outcome = run.Run();
    ASSERT_TRUE(outcome);
    const int which = dtype == Arithmetic::kBf16;
    losses[which] = outcome->best_val_loss;
    models[which] = run.ModelBytes();
  }
  EXPECT_NE(models[0], models[1]);
  EXPECT_LT(losses[0], 2.4);  // from ln(18) = 2.9: the models have learnt
  EXPECT_NEAR(losses[1], losses[0], 0.005 * losses[0]);
}

TEST(TrainInBf16, AStoppedRunIsTheStraightRun) {
  SetNumThreads(1);
  const auto bf16 = [](TinyRun* run) { run->settings.dtype = Arithmetic::kBf16; };
  EXPECT_EQ(ResumeDifferences(bf16, 0.2, 5), 0);
}

}  // namespace
}  // namespace heed
