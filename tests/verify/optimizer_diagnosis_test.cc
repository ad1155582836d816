#include "verify/diagnose/optimizer_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/planted_optimizer.h"

namespace heed {
namespace {

Result<Diagnosis> Diagnose(const TensorSet& set) {
  const TensorFile file = set.File();
  return DiagnoseOptimizer(file, "step", {});
}

TEST(OptimizerDiagnosisTest, RightUpdatesAreCorrect) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const auto& [size, step, clip] :
         {std::tuple(0.05, 1, 0.0), {1e-8, 1, 0.0}, {0.05, 6, 0.2}}) {
      const OptimizerDump dump(seed, DType::kF32, size, step, clip);
      EXPECT_EQ(Finding(Diagnose(dump.Set("correct"))), "correct") << "seed " << seed;
    }
  }
}

// PyTorch adds 1e-6 to the norm that it clips by, others nothing: neither is a fault.
TEST(OptimizerDiagnosisTest, ClippingByTheBareNormIsRight) {
  for (const double limit : {0.02, 0.1, 0.5}) {
    for (const char* norm : {"", "bare norm"}) {
      const OptimizerDump dump(11, DType::kF64, 1e-3, 7, limit * 1e-2);
      const Result<Diagnosis> diagnosis = Diagnose(dump.Set(norm));
      ASSERT_TRUE(diagnosis) << diagnosis.error().Message();
      EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect) << limit << norm;
      EXPECT_TRUE(diagnosis->conventions.at("grad_clip").ends_with(*norm ? "alone" : "1e-6"));
    }
  }
}

// BVLC/caffe#4224: the correction of both moments folded into the step size is the same update. An
// eps that is not scaled along is another one, which nothing but its own name may be given to.
TEST(FalseAlarm, BiasCorrectionFoldedIntoTheStepSizeIsRight) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      for (const int64_t step : {1, 2, 7, 300}) {
        for (const bool eps_scaled : {true, false}) {
          const OptimizerDump dump(seed, dtype, 0.05, step);
          TensorSet set = dump.Set("correct");
          const double root = std::sqrt(1 - std::pow(OptimizerDump::kBeta2, double(step)));
          const double rate =
              dump.rate * root / (1 - std::pow(OptimizerDump::kBeta1, double(step)));
          for (const auto& [name, t] : dump.tensors) {
            for (size_t i = 0; i < t.p.size(); ++i) {
              const double m =
                  OptimizerDump::kBeta1 * t.m[i] + (1 - OptimizerDump::kBeta1) * t.g[i];
              const double v =
                  OptimizerDump::kBeta2 * t.v[i] + (1 - OptimizerDump::kBeta2) * t.g[i] * t.g[i];
              const double kept =
                  t.shape.size() == 2 ? t.p[i] * (1 - dump.rate * dump.decay) : t.p[i];
              set["after." + name].values[i] =
                  kept - rate * m /
                             (std::sqrt(v) +
                              (eps_scaled ? OptimizerDump::kEps * root : OptimizerDump::kEps));
            }
          }
          const std::string finding = Finding(Diagnose(set));
          EXPECT_TRUE(finding == "correct" || (!eps_scaled && finding == "adam_eps_place"))
              << finding << NameOf(dtype) << " seed " << seed << " step " << step << eps_scaled;
        }
      }
    }
  }
}

TEST(OptimizerDiagnosisTest, CoarseStorageNamesWhatItShows) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const char* fault : {"correct", "adam_bias_correction", "resume_partial"}) {
      const OptimizerDump dump(seed, DType::kBF16, 0.05, 7);
      EXPECT_EQ(Finding(Diagnose(dump.Set(fault))), fault) << "seed " << seed;
    }
  }
}

TEST(OptimizerDiagnosisTest, RarerPlacesOfEpsAndLossesOfStateAreNamed) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    EXPECT_EQ(Finding(Diagnose(OptimizerDump(seed, DType::kF32, 1e-4, 5).Set("eps first"))),
              "adam_eps_place");
    EXPECT_EQ(Finding(Diagnose(OptimizerDump(seed, DType::kF32, 1e-2, 5).Set("v lost"))),
              "resume_partial");
  }
}

TEST(OptimizerDiagnosisTest, AnotherRateIsFitted) {
  const OptimizerDump dump(2, DType::kF32, 0.05, 4);
  TensorSet set = dump.Set("correct");
  set.settings["learning_rate"] = "0.02";
  const auto diagnosis = Diagnose(set);
  ASSERT_EQ(Finding(diagnosis), "learning_rate_value");
  EXPECT_EQ(diagnosis->explanations[0].detail, "learning_rate 0.01");
}

// A beta in place of its power is a step count of 1: no tensor of this update tells them apart.
TEST(OptimizerDiagnosisTest, BetaForItsPowerIsAmbiguous) {
  OptimizerDump dump(2, DType::kF32, 0.05, 4);
  const TensorSet right = dump.Set("correct");
  dump.step = 1;
  TensorSet set = dump.Set("correct");
  for (const auto& [name, array] : right.tensors) {
    if (!name.starts_with("after.")) set[name] = array;
  }
  set.settings = right.settings;
  EXPECT_EQ(Finding(Diagnose(set)), "ambiguous: adam_bias_correction | resume_partial");
}

TEST(OptimizerDiagnosisTest, MicroBatchesThatWereAveragedAreRight) {
  OptimizerDump dump(3, DType::kF32, 0.05, 3);
  dump.DrawMicroBatches(3, "correct");
  EXPECT_EQ(Finding(Diagnose(dump.Set("correct"))), "correct");
}

// Of every part of a schedule, whose peak is the stated rate.
TEST(OptimizerDiagnosisTest, AStatedScheduleIsFollowed) {
  for (const int64_t step : {1, 3, 6, 9, 20}) {
    OptimizerDump dump(4, DType::kF32, 0.05, step);
    dump.warmup = 5;
    dump.decay_until = 15;
    TensorSet set = dump.Set("");
    EXPECT_EQ(Finding(Diagnose(set)), "correct") << step;
    set.settings.erase("min_lr");
    EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("a schedule in part"));
  }
}

TEST(OptimizerDiagnosisTest, BadDumpsAreRefused) {
  const OptimizerDump dump(1, DType::kF32, 0.05);
  const TensorSet good = dump.Set("correct");
  TensorSet set = good;
  set.tensors.erase("grad.wte.weight");
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("grad.wte.weight"));
  set = good;
  set.settings.erase("learning_rate");
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("learning_rate: found none stated"));
  set = good;
  set["after.wte.weight"].shape = {7, 13};
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("found [7, 13]"));
  set = good;
  set.settings["beta2"] = "1.5";
  EXPECT_THAT(Finding(Diagnose(set)), testing::HasSubstr("beta2: found 1.5"));
}

}  // namespace
}  // namespace heed
