// What is decayed, the schedule's values, and the ranges of the settings.
#include "train/settings.h"

#include <gmock/gmock.h>

#include <limits>

#include "support/mixes.h"

namespace heed {
namespace {

// With gradients of zero, decay is all that an update does: each parameter shows its group.
TEST(AdamwGroups, WeightsAreDecayedAndGainsAndBiasesAreNot) {
  for (const Mix& mix : Mixes()) {
    const auto model = NoisyModel(mix.config, SimdKernels());
    ASSERT_TRUE(model->parameters().AllocateGradients());
    std::vector<std::vector<float>> before;
    for (const Parameter& p : model->parameters().all()) {
      before.emplace_back(p.data, p.data + p.elements);
    }
    AdamwSettings settings;
    settings.weight_decay = 0.25;
    (*Adamw::Create(&model->parameters()))->Step(SimdKernels(), settings, 0.5, 0);
    size_t index = 0;
    for (const Parameter& p : model->parameters().all()) {
      const std::string leaf = p.name.substr(0, p.name.rfind('.'));
      const bool gain_or_bias = p.name.ends_with(".bias") ||
                                leaf.find("ln_") != std::string::npos ||
                                leaf.find("norm") != std::string::npos;
      const std::vector<float>& old = before[index++];
      for (int64_t i = 0; i < p.elements; ++i) {
        // 1 - 0.5 · 0.25, one rounding.
        ASSERT_FLOAT_EQ(p.data[i], gain_or_bias ? old[i] : 0.875f * old[i]) << p.name;
      }
    }
  }
}

TEST(Schedules, ValuesByHand) {
  const Schedule s{1e-3, 1e-4, 100, 2000};
  EXPECT_DOUBLE_EQ(s.At(0), 1e-3 / 101);
  EXPECT_DOUBLE_EQ(s.At(49), 1e-3 * 50 / 101);
  EXPECT_DOUBLE_EQ(s.At(99), 1e-3 * 100 / 101);
  EXPECT_DOUBLE_EQ(s.At(100), 1e-3);
  EXPECT_NEAR(s.At(575), 8.68198051533946e-4, 1e-15);  // 1e-4 + (1 + sqrt(1/2)) / 2 · 9e-4
  EXPECT_NEAR(s.At(1050), 5.5e-4, 1e-15);
  EXPECT_NEAR(s.At(1525), 2.31801948466054e-4, 1e-15);
  EXPECT_DOUBLE_EQ(s.At(2000), 1e-4);
  EXPECT_DOUBLE_EQ(s.At(1000000), 1e-4);
  const Schedule cold{1e-3, 0, 0, 10};
  EXPECT_DOUBLE_EQ(cold.At(0), 1e-3);
  EXPECT_NEAR(cold.At(5), 5e-4, 1e-18);
  // A warm-up as long as the run.
  const Schedule warm{1e-3, 1e-4, 10, 10};
  EXPECT_DOUBLE_EQ(warm.At(9), 1e-3 * 10 / 11);
  EXPECT_DOUBLE_EQ(warm.At(10), 1e-4);
}

TEST(Settings, DefaultsDependOnOthers) {
  TrainSettings settings;
  settings.learning_rate = 3e-3;
  settings.max_iters = 700;
  settings.eval_interval = 35;
  ASSERT_TRUE(settings.Resolve());
  EXPECT_DOUBLE_EQ(settings.min_lr, 3e-4);
  EXPECT_EQ(settings.lr_decay_iters, 700);
  EXPECT_EQ(settings.checkpoint_interval, 35);
}

TEST(Settings, WhatIsOutOfRangeIsRefusedByName) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  struct Number {
    const char* name;
    double TrainSettings::*field;
    std::vector<double> bad;
  };
  const std::vector<Number> numbers = {
      {"val_fraction", &TrainSettings::val_fraction, {kNan, -0.1, 0, 1, kInfinite}},
      {"learning_rate", &TrainSettings::learning_rate, {kNan, -1e-3, kInfinite}},
      {"min_lr", &TrainSettings::min_lr, {-1, -0.5, 1, kInfinite}},  // NaN: not given
      {"beta1", &TrainSettings::beta1, {kNan, -0.1, 1, 2}},
      {"beta2", &TrainSettings::beta2, {kNan, -0.1, 1, 2}},
      {"weight_decay", &TrainSettings::weight_decay, {kNan, -0.1, 1e30, kInfinite}},
      {"grad_clip", &TrainSettings::grad_clip, {kNan, -1, kInfinite}}};
  for (const Number& n : numbers) {
    for (const double bad : n.bad) {
      TrainSettings settings;
      settings.*n.field = bad;
      const Status status = settings.Resolve();
      ASSERT_FALSE(status) << n.name << " " << bad;
      EXPECT_EQ(status.error().where, n.name);
      EXPECT_FALSE(status.error().expected.empty());
    }
  }
  struct Count {
    const char* name;
    int64_t TrainSettings::*field;
    int64_t least;
  };
  const std::vector<Count> counts = {
      {"batch_size", &TrainSettings::batch_size, 1},
      {"grad_accum", &TrainSettings::grad_accum, 1},
      {"max_iters", &TrainSettings::max_iters, 0},
      {"warmup_iters", &TrainSettings::warmup_iters, 0},
      {"lr_decay_iters", &TrainSettings::lr_decay_iters, 0},
      {"eval_interval", &TrainSettings::eval_interval, 1},
      {"eval_iters", &TrainSettings::eval_iters, 1},
      {"log_interval", &TrainSettings::log_interval, 1},
      {"checkpoint_interval", &TrainSettings::checkpoint_interval, 0}};
  for (const Count& c : counts) {
    for (const int64_t bad : {c.least - 1, int64_t{1} << 62}) {
      TrainSettings settings;
      settings.*c.field = bad;
      const Status status = settings.Resolve();
      ASSERT_FALSE(status) << c.name << " " << bad;
      EXPECT_EQ(status.error().where, c.name);
    }
    TrainSettings settings;
    settings.*c.field = c.least;
    EXPECT_TRUE(settings.Resolve()) << c.name;
  }
}

}  // namespace
}  // namespace heed
