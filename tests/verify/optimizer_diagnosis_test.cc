#include "verify/diagnose/optimizer_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/planted_dump.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr double kRate = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

struct Tensor {
  std::vector<int64_t> shape;
  Numbers p, g, m, v;
};

struct OptimizerDump {
  std::map<std::string, Tensor> tensors;
  DType dtype;
  int64_t step;
  double clip;

  // Gradients of the given size, moments as after `at` - 1 steps.
  OptimizerDump(uint32_t seed, DType type, double size, int64_t at = 1, double limit = 0)
      : dtype(type), step(at), clip(limit) {
    Draw draw(seed, type);
    const std::map<std::string, std::vector<int64_t>> shapes = {
        {"wte.weight", {13, 7}}, {"h.0.ln_1.weight", {31}}, {"h.0.attn.c_attn.weight", {7, 21}}};
    for (const auto& [name, shape] : shapes) {
      const size_t n = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
      Tensor t{shape, draw.Normal(n, 0.1, shape.size() == 1 ? 1 : 0), draw.Normal(n, size)};
      t.m.resize(n);
      t.v.resize(n);
      if (step > 1) {
        t.m = draw.Normal(n, size / 2);
        t.v = draw.Normal(n, size);
        for (double& x : t.v) x *= x;
        t.v = AsStored(type, t.v);
      }
      tensors[name] = std::move(t);
    }
  }

  Numbers After(const Tensor& t, const std::string& fault) const {
    double squares = 0;
    for (const auto& [name, other] : tensors) {
      for (const double g : other.g) squares += g * g;
    }
    const double limit = clip / (std::sqrt(squares) + (fault == "bare norm" ? 0 : 1e-6));
    double scale = clip > 0 && limit < 1 && fault != "clip_misplaced" ? limit : 1;
    if (fault == "accumulation_not_averaged") scale *= 4;
    const bool fresh = fault == "resume_partial";
    const double at = fresh ? 1 : double(step), rate = fault == "schedule_zero_start" ? 0 : kRate;
    Numbers after;
    for (size_t i = 0; i < t.p.size(); ++i) {
      const bool decays = t.shape.size() == 2 || fault == "decay_on_norms";
      const double pulled = fault == "decay_coupled" && decays ? kDecay * t.p[i] : 0;
      const double g = t.g[i] * scale + pulled;
      const double m = kBeta1 * (fresh ? 0 : t.m[i]) + (1 - kBeta1) * g;
      const double v = kBeta2 * (fresh || fault == "v lost" ? 0 : t.v[i]) + (1 - kBeta2) * g * g;
      const bool raw = fault == "adam_bias_correction";
      const double hat_m = raw ? m : m / (1 - std::pow(kBeta1, at));
      const double hat_v = raw ? v : v / (1 - std::pow(kBeta2, at));
      const double divisor = fault == "adam_eps_place" ? std::sqrt(hat_v + kEps)
                             : fault == "eps first"
                                 ? std::sqrt(hat_v + kEps / (1 - std::pow(kBeta2, at)))
                                 : std::sqrt(hat_v) + kEps;
      const double kept =
          decays && fault != "decay_coupled" ? t.p[i] * (1 - rate * kDecay) : t.p[i];
      after.push_back(kept - rate * hat_m / divisor);
    }
    return after;
  }

  TensorSet Set(const std::string& fault) const {
    TensorSet set;
    for (const auto& [name, t] : tensors) {
      set[name] = {t.shape, t.p, dtype};
      set["grad." + name] = {t.shape, t.g, dtype};
      set["after." + name] = {t.shape, After(t, fault), dtype};
      if (step == 1) continue;
      set["m." + name] = {t.shape, t.m, dtype};
      set["v." + name] = {t.shape, t.v, dtype};
    }
    set.settings = {{"learning_rate", "0.01"},
                    {"beta1", "0.9"},
                    {"beta2", "0.95"},
                    {"eps", "1e-8"},
                    {"weight_decay", "0.1"},
                    {"step", std::to_string(step)},
                    {"grad_clip", std::to_string(clip)}};
    return set;
  }
};

Result<Diagnosis> Diagnose(const TensorSet& set) {
  const TensorFile file = set.File();
  return DiagnoseOptimizer(file, "step", {});
}

TEST(OptimizerDiagnosisTest, EveryFaultIsNamedAlone) {
  struct Case {
    const char* fault;
    double size;
    int64_t step;
    double clip;
  };
  constexpr Case kCases[] = {
      {"correct", 0.05, 1, 0},
      {"correct", 1e-8, 1, 0},
      {"correct", 0.05, 6, 0.2},
      {"adam_bias_correction", 0.05, 1, 0},
      {"adam_bias_correction", 0.05, 5, 0},
      {"adam_eps_place", 1e-6, 1, 0},
      {"decay_on_norms", 0.05, 3, 0},
      {"decay_coupled", 0.05, 2, 0},
      {"clip_misplaced", 0.05, 4, 0.2},
      {"accumulation_not_averaged", 0.05, 4, 0},
      {"schedule_zero_start", 0.05, 1, 0},
      {"resume_partial", 0.05, 9, 0},
  };
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (const Case& c : kCases) {
      const OptimizerDump dump(seed, DType::kF32, c.size, c.step, c.clip);
      EXPECT_EQ(Finding(Diagnose(dump.Set(c.fault))), c.fault) << "seed " << seed;
    }
  }
}

// In bfloat16 a change of 1e-3 moves few numbers; what moves more is named.
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
          const double root = std::sqrt(1 - std::pow(kBeta2, double(step)));
          const double rate = kRate * root / (1 - std::pow(kBeta1, double(step)));
          for (const auto& [name, t] : dump.tensors) {
            for (size_t i = 0; i < t.p.size(); ++i) {
              const double m = kBeta1 * t.m[i] + (1 - kBeta1) * t.g[i];
              const double v = kBeta2 * t.v[i] + (1 - kBeta2) * t.g[i] * t.g[i];
              const double kept = t.shape.size() == 2 ? t.p[i] * (1 - kRate * kDecay) : t.p[i];
              set["after." + name].values[i] =
                  kept - rate * m / (std::sqrt(v) + (eps_scaled ? kEps * root : kEps));
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

TEST(OptimizerDiagnosisTest, MicroBatchesTellHowTheyWereJoined) {
  const OptimizerDump dump(3, DType::kF32, 0.05, 3);
  constexpr int64_t kBatches = 3;
  for (const auto& [fault, first, factor] :
       {std::tuple("correct", int64_t{0}, 1.0 / kBatches),
        std::tuple("accumulation_not_averaged", int64_t{0}, 1.0),
        std::tuple("zero_grad_misplaced", kBatches - 1, 1.0 / kBatches)}) {
    OptimizerDump joined = dump;
    std::map<std::string, Array> micro;
    Draw draw(11, DType::kF32);
    for (auto& [name, t] : joined.tensors) {
      const size_t n = t.p.size();
      const Numbers all = draw.Normal(kBatches * n, 0.05);
      t.g.assign(n, 0);
      for (int64_t i = first; i < kBatches; ++i) {
        for (size_t j = 0; j < n; ++j) t.g[j] += all[i * n + j] * factor;
      }
      std::vector<int64_t> shape = t.shape;
      shape.insert(shape.begin(), kBatches);
      micro[name] = {shape, all, DType::kF32};
    }
    TensorSet set = joined.Set("correct");
    for (const auto& [name, array] : micro) set["grad." + name] = array;
    EXPECT_EQ(Finding(Diagnose(set)), fault);
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
