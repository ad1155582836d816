// Faults that others have made, planted one at a time: the check that is to find each of them is
// green without it and red with it. The checks are those of the models' own tests.
#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "support/checks.h"
#include "support/tiny_run.h"

namespace heed {
namespace {

// ---- Faulty attention

enum class AttentionFault {
  kNone,
  kOneFutureKey,
  kNoMask,
  kTopLeftMask,
  kTiledHeads,
  kNoScale,
  kColumnSoftmax,
  kMergeWithoutTranspose,
};

// Attention written down naively, with one fault. Scores are kept whole, so that softmax can run
// along the wrong axis.
template <AttentionFault kFault>
void FaultyAttention(const AttentionArgs<>& a) {
  const auto is = [](AttentionFault fault) { return kFault == fault; };
  const double scale = is(AttentionFault::kNoScale) ? 1.0 : a.scale;
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t length = a.lengths != nullptr ? a.lengths[b] : a.S;
    for (int64_t h = 0; h < a.H; ++h) {
      const int64_t group = is(AttentionFault::kTiledHeads) ? h % a.Hkv : h / (a.H / a.Hkv);
      const auto key = [&](int64_t s) { return b * a.kv_batch + s * a.kv_row + group * a.kv_head; };
      std::vector<double> weights(a.T_ * length, 0.0);
      for (int64_t t = 0; t < a.T_; ++t) {
        int64_t visible = length - a.T_ + t + 1;
        if (is(AttentionFault::kOneFutureKey)) visible = std::min(visible + 1, length);
        if (is(AttentionFault::kNoMask)) visible = length;
        if (is(AttentionFault::kTopLeftMask)) visible = t + 1;
        for (int64_t s = 0; s < visible; ++s) {
          double dot = 0;
          for (int64_t d = 0; d < a.D; ++d) {
            dot += double(a.q[b * a.q_batch + t * a.q_row + h * a.D + d]) * a.k[key(s) + d];
          }
          weights[t * length + s] = std::exp(scale * dot);
        }
      }
      const int64_t lines = is(AttentionFault::kColumnSoftmax) ? length : a.T_;
      for (int64_t line = 0; line < lines; ++line) {
        const int64_t n = is(AttentionFault::kColumnSoftmax) ? a.T_ : length;
        const int64_t step = is(AttentionFault::kColumnSoftmax) ? length : 1;
        const int64_t first = is(AttentionFault::kColumnSoftmax) ? line : line * length;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += weights[first + i * step];
        for (int64_t i = 0; i < n; ++i) weights[first + i * step] /= sum;
      }
      for (int64_t t = 0; t < a.T_; ++t) {
        const int64_t merged = is(AttentionFault::kMergeWithoutTranspose)
                                   ? ((b * a.H + h) * a.T_ + t) * a.D
                                   : ((b * a.T_ + t) * a.H + h) * a.D;
        for (int64_t d = 0; d < a.D; ++d) {
          double z = 0;
          for (int64_t s = 0; s < length; ++s) z += weights[t * length + s] * a.v[key(s) + d];
          a.z[merged + d] = static_cast<float>(z);
        }
      }
    }
  }
}

template <AttentionFault kFault>
Kernels WithAttention() {
  Kernels kernels = SimdKernels();
  kernels.attention_forward = FaultyAttention<kFault>;
  return kernels;
}

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

// The naive form itself is right, so what turns red below is the fault.
TEST(PlantedFaults, WithoutOneEveryCheckIsGreen) {
  const Kernels naive = WithAttention<AttentionFault::kNone>();
  for (const Kernels* kernels : {&SimdKernels(), &ReferenceKernels(), &naive}) {
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
  const Kernels faulty = WithAttention<AttentionFault::kOneFutureKey>();
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, NoMask) {
  const Kernels faulty = WithAttention<AttentionFault::kNoMask>();
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

// Invisible while queries and keys are as many: only the cache shows it.
TEST(PlantedFaults, MaskOfACachedPieceAlignedAtTheTopLeft) {
  const Kernels faulty = WithAttention<AttentionFault::kTopLeftMask>();
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(GroupedMix(), faulty), 1e-2);
}

// Invisible with one key/value head for each query head.
TEST(PlantedFaults, KeyHeadsTiledInsteadOfRepeated) {
  const Kernels faulty = WithAttention<AttentionFault::kTiledHeads>();
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(GoldenLogitsError(kGrouped, faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, ScoresNotScaled) {
  EXPECT_GT(GoldenLogitsError(kPlain, WithAttention<AttentionFault::kNoScale>()),
            100 * kForwardBound);
}

// The last query has a part in every denominator, so this leaks as well.
TEST(PlantedFaults, SoftmaxAlongTheQueries) {
  const Kernels faulty = WithAttention<AttentionFault::kColumnSoftmax>();
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
  EXPECT_GT(CausalityBreaksOf(faulty), 0);
}

TEST(PlantedFaults, HeadsMergedWithoutTransposing) {
  const Kernels faulty = WithAttention<AttentionFault::kMergeWithoutTranspose>();
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
  EXPECT_GT(CausalityBreaksOf(faulty), 0) << "positions mix with heads";
}

// ---- Positions

// Invisible without a cache.
TEST(PlantedFaults, RotaryPositionsRestartBehindACache) {
  Kernels faulty = SimdKernels();
  faulty.rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.offsets = nullptr;
    SimdKernels().rope(changed);
  };
  EXPECT_LT(GoldenLogitsError(kGrouped, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(GroupedMix(), faulty), 1e-2);
}

TEST(PlantedFaults, LearnedPositionsRestartBehindACache) {
  Kernels faulty = SimdKernels();
  faulty.embedding_forward = [](const EmbeddingArgs<>& args) {
    EmbeddingArgs<> changed = args;
    changed.offsets = nullptr;
    SimdKernels().embedding_forward(changed);
  };
  EXPECT_LT(GoldenLogitsError(kPlain, faulty), kForwardBound);
  EXPECT_GT(CacheErrorOf(Mixes()[0].config, faulty), 1e-2);
}

TEST(PlantedFaults, RotaryPairingSwapped) {
  Kernels faulty = SimdKernels();
  faulty.rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.interleaved = !args.interleaved;
    SimdKernels().rope(changed);
  };
  EXPECT_GT(GoldenLogitsError(kGrouped, faulty), 100 * kForwardBound);
  EXPECT_GT(GoldenLogitsError("gpt2-rope-interleaved-mqa", faulty), 100 * kForwardBound);
}

TEST(PlantedFaults, RotationBackwardTurnsForward) {
  Kernels faulty = SimdKernels();
  faulty.rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.inverse = false;
    SimdKernels().rope(changed);
  };
  EXPECT_LT(GoldenLogitsError(kGrouped, faulty), kForwardBound);
  EXPECT_GT(GoldenGradientError(kGrouped, faulty), 100 * kGradientBound);
}

// ---- Norms, loss, dropout

// 1 / (sqrt(var) + eps) for 1 / sqrt(var + eps): nearly nothing on these rows, and still found.
TEST(PlantedFaults, EpsilonOutsideTheRootOfTheNorm) {
  Kernels faulty = SimdKernels();
  faulty.norm_forward = [](const NormArgs<>& args) {
    SimdKernels().norm_forward(args);
    for (int64_t r = 0; r < args.rows; ++r) {
      const double variance = 1.0 / (double(args.rstd[r]) * args.rstd[r]) - args.eps;
      args.rstd[r] = static_cast<float>(1.0 / (std::sqrt(variance) + args.eps));
    }
    SimdKernels().norm_apply(args);
  };
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), kForwardBound);
}

TEST(PlantedFaults, LabelsShiftedTwice) {
  Kernels faulty = SimdKernels();
  faulty.cross_entropy = [](const CrossEntropyArgs<>& args) {
    std::vector<int32_t> shifted(args.targets + 1, args.targets + args.rows);
    shifted.push_back(args.targets[args.rows - 1]);
    CrossEntropyArgs<> changed = args;
    changed.targets = shifted.data();
    SimdKernels().cross_entropy(changed);
  };
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
  Kernels faulty = SimdKernels();
  faulty.attention_forward = [](const AttentionArgs<>& args) {
    AttentionArgs<> changed = args;
    changed.dropout.p = 0.1;
    SimdKernels().attention_forward(changed);
  };
  EXPECT_GT(GoldenLogitsError(kPlain, faulty), 100 * kForwardBound);
}

// 4e-4 at most in one activation.
TEST(PlantedFaults, GeluByErfForTanh) {
  Kernels faulty = SimdKernels();
  faulty.matmul = [](const MatmulArgs<>& args) {
    SimdKernels().matmul(args);
    if (args.epilogue != Epilogue::kGelu) return;
    for (int64_t i = 0; i < args.M; ++i) {
      for (int64_t j = 0; j < args.N; ++j) {
        const double x = args.c[i * args.ldc + j];
        args.aux[i * args.ldc + j] = static_cast<float>(0.5 * x * std::erfc(-x / std::sqrt(2.0)));
      }
    }
  };
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
