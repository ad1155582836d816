// Faults that others have made, planted one at a time: the check that is to find each of them is
// green without it and red with it. The checks are those of the models' own tests.
#include "verify/planted.h"

#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "support/checks.h"
#include "support/tiny_run.h"

namespace heed {
namespace {

Kernels Planted(const std::string& fault) { return *PlantedKernels(fault, SimdKernels()); }

// A case with grouped queries (H 4, Hkv 2), and one with heads of its own.
constexpr const char* kGrouped = "gpt2-rope-gqa";
constexpr const char* kPlain = "gpt2-learned";

// Grouped, rotary, H 6, Hkv 2.
ModelConfig GroupedMix() { return Mixes()[2].config; }

int64_t CausalityBreaksOf(const Kernels& kernels) {
  return CausalityBreaks(*NoisyModel(GroupedMix(), kernels),
                         RandomTokens(2 * 13, GroupedMix().vocab_size), 2);
}

double CacheErrorOf(const ModelConfig& config, const Kernels& kernels) {
  return CacheError(*NoisyModel(config, kernels), RandomTokens(2 * 7, config.vocab_size), 2,
                    {3, 1, 3});
}

TEST(PlantedFaults, WithoutOneEveryCheckIsGreen) {
  for (const Kernels* kernels : {&SimdKernels(), &ReferenceKernels()}) {
    for (const char* name : {kGrouped, kPlain}) {
      EXPECT_LT(GoldenLogitsError(name, *kernels), kForwardBound);
      EXPECT_LT(GoldenLossError(name, *kernels), kForwardBound);
    }
    EXPECT_EQ(CausalityBreaksOf(*kernels), 0);
    EXPECT_EQ(CacheErrorOf(GroupedMix(), *kernels), 0);
    EXPECT_EQ(CacheErrorOf(Mixes()[0].config, *kernels), 0);
  }
  for (const Kernels* kernels : {&SimdKernels(), &ReferenceKernels()}) {
    EXPECT_LT(GoldenGradientError(kPlain, *kernels), kGradientBound);
    EXPECT_LT(GoldenTrajectoryError(kPlain, *kernels), kTrajectoryBound);
  }
  EXPECT_EQ(ResumeDifferences([](TinyRun*) {}, 0, 6), 0);
}

TEST(PlantedFaults, OneFutureKeyIsVisible) {
  const Kernels faulty = Planted("mask_shifted_by_one");
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, NoMask) {
  const Kernels faulty = Planted("mask_missing");
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

// Invisible while queries and keys are as many: only the cache shows it.
TEST(PlantedFaults, MaskOfACachedPieceAlignedAtTheTopLeft) {
  const Kernels faulty = Planted("causal_align_top_left");
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(GroupedMix(), faulty), 1e-2);
}

// Invisible with one key/value head for each query head.
TEST(PlantedFaults, KeyHeadsTiledInsteadOfRepeated) {
  const Kernels faulty = Planted("gqa_tiled");
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(GoldenLogitsError(kGrouped, faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, ScoresNotScaled) {
  EXPECT_GT(GoldenLogitsError(kPlain, Planted("scale_missing")), 100 * kForwardBound);
}

// The last query has a part in every denominator, so this leaks as well.
TEST(PlantedFaults, SoftmaxAlongTheQueries) {
  const Kernels faulty = Planted("softmax_axis_query");
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
}

TEST(PlantedFaults, HeadsMergedWithoutTransposing) {
  const Kernels faulty = Planted("heads_merged_untransposed");
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
  EXPECT_GT(CausalityBreaksOf(faulty), 0) << "positions mix with heads";
}

// ---- Positions

// Invisible without a cache.
TEST(PlantedFaults, RotaryPositionsRestartBehindACache) {
  const Kernels faulty = Planted("position_restart");
  EXPECT_LT(GoldenLogitsError(kGrouped, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(GroupedMix(), faulty), 1e-2);
}

TEST(PlantedFaults, LearnedPositionsRestartBehindACache) {
  const Kernels faulty = Planted("position_restart");
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(Mixes()[0].config, faulty), 1e-2);
}

TEST(PlantedFaults, RotaryPairingSwapped) {
  const Kernels faulty = Planted("rope_pairing");
  EXPECT_GT(GoldenLogitsError(kGrouped, faulty), 100 * kForwardBound);
  EXPECT_GT(GoldenLogitsError("gpt2-rope-interleaved-mqa", faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, RotationBackwardTurnsForward) {
  const Kernels faulty = Planted("rope_gradient_sign");
  EXPECT_LT(GoldenLogitsError(kGrouped, faulty), kForwardBound);
  EXPECT_GT(GoldenGradientError(kGrouped, faulty), 100 * kGradientBound);
}

// ---- Norms, loss, dropout

// 1 / (sqrt(var) + eps) for 1 / sqrt(var + eps): nearly nothing on these rows, and still found.
TEST(PlantedFaults, EpsilonOutsideTheRootOfTheNorm) {
  const Kernels faulty = Planted("norm_eps_outside_sqrt");
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), kForwardBound);
}

TEST(PlantedFaults, LabelsShiftedTwice) {
  const Kernels faulty = Planted("labels_shifted_twice");
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(GoldenLossError(kPlain, faulty), 10 * kForwardBound);
  EXPECT_GT(GoldenGradientError(kPlain, faulty), 100 * kGradientBound);
}

TEST(PlantedFaults, IgnoredTargetsCounted) {
  Kernels faulty = SimdKernels();
  faulty.cross_entropy = [](const CrossEntropyArgs<>& args) {
    std::vector<int32_t> counted(args.targets, args.targets + args.rows);
    for (int32_t& target : counted) target = std::max(target, 0);
    CrossEntropyArgs<> changed = args;
    changed.targets = counted.data();
    SimdKernels().cross_entropy(changed);
  };
  EXPECT_LT(GoldenLossError(kPlain, faulty), kForwardBound) << "no target is ignored there";
  EXPECT_GT(GoldenLossError("gpt2-ignored-targets", faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, DropoutInEval) {
  ModelConfig config = GroupedMix();
  config.dropout = 0.1;
  const auto eval = [](const Gpt& model, int64_t B, int64_t T) { return model.NewPass(B, T); };
  EXPECT_EQ(EvalDropoutError(config, SimdKernels(), eval), 0);
  const auto never_switched = [](const Gpt& model, int64_t B, int64_t T) {
    Pass pass = model.NewPass(B, T);
    pass.training = true;
    return pass;
  };
  EXPECT_GT(EvalDropoutError(config, SimdKernels(), never_switched), 1e-2);
  // And only in the attention, which has a switch of its own in other libraries.
  const Kernels faulty = Planted("dropout_live_in_eval");
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

// 4e-4 at most in one activation.
TEST(PlantedFaults, GeluByErfForTanh) {
  const Kernels faulty = Planted("gelu_form");
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), kForwardBound);
}

// ---- The optimizer

// What the golden cases were made with.
constexpr double kWeightDecay = 0.1;

Kernels WithAdamw(void (*adamw)(const AdamwArgs<>&)) {
  Kernels kernels = SimdKernels();
  kernels.adamw = adamw;
  return kernels;
}

TEST(PlantedFaults, DecayOnNormsAndBiases) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    AdamwArgs<> changed = args;
    changed.weight_decay = kWeightDecay;
    SimdKernels().adamw(changed);
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), kTrajectoryBound);
}

TEST(PlantedFaults, NoDecayAtAll) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    AdamwArgs<> changed = args;
    changed.weight_decay = 0;
    SimdKernels().adamw(changed);
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), kTrajectoryBound);
}

TEST(PlantedFaults, NoBiasCorrection) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    AdamwArgs<> changed = args;
    changed.step = 1'000'000;  // where the corrections are 1
    SimdKernels().adamw(changed);
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), 10 * kTrajectoryBound);
}

TEST(PlantedFaults, StepCountedFromTwo) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    AdamwArgs<> changed = args;
    changed.step = args.step + 1;
    SimdKernels().adamw(changed);
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), 10 * kTrajectoryBound);
}

// sqrt(v + eps) for sqrt(v) + eps.
TEST(PlantedFaults, EpsilonInsideTheRootOfAdam) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    const double correction1 = 1 - std::pow(args.beta1, args.step);
    const double correction2 = 1 - std::pow(args.beta2, args.step);
    for (int64_t i = 0; i < args.n; ++i) {
      const double g = args.grad_scale * args.grad[i];
      args.m[i] = static_cast<float>(args.beta1 * args.m[i] + (1 - args.beta1) * g);
      args.v[i] = static_cast<float>(args.beta2 * args.v[i] + (1 - args.beta2) * g * g);
      const double step = args.m[i] / correction1 / std::sqrt(args.v[i] / correction2 + args.eps);
      args.param[i] = static_cast<float>(
          args.param[i] * (1 - args.learning_rate * args.weight_decay) - args.learning_rate * step);
    }
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), kTrajectoryBound);
}

TEST(PlantedFaults, GradientsNotClipped) {
  const Kernels faulty = WithAdamw([](const AdamwArgs<>& args) {
    AdamwArgs<> changed = args;
    changed.grad_scale = 1;
    SimdKernels().adamw(changed);
  });
  EXPECT_GT(GoldenTrajectoryError(kPlain, faulty), kTrajectoryBound);
}

// ---- Resuming

// Rewrites the checkpoint as a program would that forgets some of it.
void Forget(const std::string& folder, const std::string& prefix, const std::string& key,
            const std::string& value) {
  const std::string path = folder + "/checkpoint/state.safetensors";
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  std::map<std::string, std::string> metadata;
  {
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file);
    metadata = file->metadata();
    for (const TensorEntry& entry : file->tensors()) {
      values.push_back(*file->Floats(entry.name));
      if (!prefix.empty() && entry.name.starts_with(prefix)) {
        std::fill(values.back().begin(), values.back().end(), 0.0f);
      }
      tensors.push_back({entry.name, entry.dtype, entry.shape});
    }
  }
  if (!key.empty()) metadata[key] = value;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = values[i].data();
  ASSERT_TRUE(WriteSafetensors(path, tensors, metadata, /*overwrite=*/true));
}

int DifferencesWhenForgotten(const std::string& prefix, const std::string& key,
                             const std::string& value) {
  return ResumeDifferences([](TinyRun*) {}, 0.1, 6,
                           [&](const std::string& folder) { Forget(folder, prefix, key, value); });
}

TEST(PlantedFaults, StateLostOnResume) {
  EXPECT_EQ(DifferencesWhenForgotten("", "", ""), 0) << "rewritten, nothing forgotten";
  EXPECT_EQ(DifferencesWhenForgotten("m.", "", ""), 2) << "first moments";
  EXPECT_EQ(DifferencesWhenForgotten("v.", "", ""), 2) << "second moments";
  EXPECT_EQ(DifferencesWhenForgotten("", "seed", "12"), 2) << "batches and masks";
}

}  // namespace
}  // namespace heed
