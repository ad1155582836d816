// Which check sees which planted fault: a check that nothing turns red proves nothing.
#include "verify/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/parallel.h"
#include "data/stories.h"
#include "support/checks.h"
#include "support/tiny_run.h"
#include "verify/planted.h"

namespace heed {
namespace {

// Grouped and rotary, with dropout; no two sizes are equal.
ModelConfig Grouped() {
  ModelConfig c;
  c.n_layer = 2;
  c.n_head = 6;
  c.n_kv_head = 2;
  c.n_embd = 48;
  c.block_size = 40;
  c.vocab_size = 37;
  c.position = Position::kRope;
  c.dropout = 0.1;
  return c;
}

std::map<std::string, CheckResult> Results(const Kernels& kernels, const ModelConfig& config) {
  const Result<CheckReport> report = CheckFreshModel(config, kernels, /*seed=*/1);
  std::map<std::string, CheckResult> results;
  if (!report) {
    ADD_FAILURE() << report.error().Message();
    return results;
  }
  for (const CheckResult& r : report->results) results.emplace(std::string(r.name), r);
  return results;
}

std::set<std::string> Failed(const Kernels& kernels, const ModelConfig& config = Grouped()) {
  std::set<std::string> failed;
  for (const auto& [name, result] : Results(kernels, config)) {
    if (result.verdict == CheckVerdict::kFailed) failed.insert(name);
  }
  return failed;
}

std::set<std::string> FailedWith(const std::string& fault) {
  return Failed(*PlantedKernels(fault, SimdKernels()));
}

TEST(CheckModel, RightModelsPassOnBothKernels) {
  EXPECT_EQ(Failed(SimdKernels()), std::set<std::string>{});
  EXPECT_EQ(Failed(ReferenceKernels()), std::set<std::string>{});
  for (const auto& [name, result] : Results(SimdKernels(), Grouped())) {
    EXPECT_EQ(result.verdict, CheckVerdict::kOk) << name << ": " << result.note;
  }
}

TEST(CheckModel, WhatDoesNotApplyIsSkippedWithAReason) {
  ModelConfig plain = Grouped();
  plain.n_kv_head = plain.n_head;
  plain.position = Position::kNone;
  plain.dropout = 0;
  std::set<std::string> skipped;
  for (const auto& [name, result] : Results(SimdKernels(), plain)) {
    if (result.verdict != CheckVerdict::kSkipped) continue;
    skipped.insert(name);
    EXPECT_FALSE(result.note.empty()) << name;
  }
  EXPECT_EQ(skipped,
            (std::set<std::string>{"rope_angles", "rope_norm", "rope_relative", "rope_90_degrees",
                                   "head_map", "positions", "dropout_modes", "dropout_mean"}));
}

// The homework's integration: 6 query heads on 2 of width 2, both rotated.
TEST(LessonRow20, GroupedQueriesWithRotaryPositionsPassEveryCheck) {
  ModelConfig c = Grouped();
  c.n_embd = 12;
  // All but one batch learned by heart, for which it is too narrow.
  for (const auto& [name, result] : Results(SimdKernels(), c)) {
    const CheckVerdict want = name == "overfit" ? CheckVerdict::kSkipped : CheckVerdict::kOk;
    EXPECT_EQ(result.verdict, want) << name << ": " << result.note;
  }
}

TEST(LessonRow22, ANormOverTheSequenceIsFoundOutsideAttention) {
  const auto results = Results(*PlantedKernels("norm_over_sequence", SimdKernels()), Grouped());
  EXPECT_EQ(results.at("causality").verdict, CheckVerdict::kFailed);
  EXPECT_EQ(results.at("causality_layers").verdict, CheckVerdict::kFailed);
  EXPECT_EQ(results.at("row_sums").verdict, CheckVerdict::kOk);
  EXPECT_EQ(results.at("pattern").verdict, CheckVerdict::kOk);
}

TEST(LessonRow25, FaultsOfDropoutAreTold) {
  EXPECT_EQ(FailedWith("dropout_unused").count("eval_repeats"), 0u);
  EXPECT_TRUE(FailedWith("dropout_unused").contains("dropout_modes"));
  EXPECT_TRUE(FailedWith("dropout_live_in_eval").contains("eval_repeats"));
}

TEST(CheckModel, OnePositionIsEnough) {
  ModelConfig one = Grouped();
  one.block_size = 1;
  EXPECT_EQ(Failed(SimdKernels(), one), std::set<std::string>{});
}

// A rotary model of grouped queries that has learned stories.
class TrainedModel {
 public:
  TrainedModel() : run_(StoryGrammar::Get().Text(/*seed=*/1, /*bytes=*/60000)) {
    ModelConfig c = Grouped();
    c.vocab_size = run_.tokenizer->vocab_size();
    c.block_size = TinyRun::kBlock;
    c.dropout = 0;
    run_.model = *Gpt::Create(c, SimdKernels());
    run_.model->Initialize(1);
    TrainSettings& s = run_.settings;
    s.batch_size = 32;
    s.max_iters = s.eval_interval = s.checkpoint_interval = 300;
    EXPECT_TRUE(s.Resolve());
    run_.trainer = *Trainer::Create(run_.model.get(), *run_.tokenizer, *run_.source, s, /*seed=*/1,
                                    run_.folder.path());
    EXPECT_TRUE(run_.Run());
    tokens_ = *run_.tokenizer->Encode(StoryGrammar::Get().Text(/*seed=*/2, /*bytes=*/2000));
    tokens_.resize(tokens_.size() / TinyRun::kBlock * TinyRun::kBlock);
  }

  // With the weights on these operations: nats per token in one pass, or through a cache.
  double Loss(const Kernels& kernels, bool cached) const {
    const auto model = *Gpt::Create(run_.model->config(), kernels);
    for (size_t i = 0; i < model->parameters().all().size(); ++i) {
      const Parameter& from = run_.model->parameters().all()[i];
      std::copy_n(from.data, from.elements, model->parameters().all()[i].data);
    }
    const int64_t T = TinyRun::kBlock, B = static_cast<int64_t>(tokens_.size()) / T;
    const std::vector<float> logits =
        cached ? CachedLogits(*model, tokens_, B, {3, 4, 1}) : FullLogits(*model, tokens_, B);
    const auto V = static_cast<size_t>(model->config().vocab_size);
    double loss = 0;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (i % T == T - 1) continue;
      double sum = 0;
      for (size_t v = 0; v < V; ++v) sum += std::exp(double{logits[i * V + v]});
      loss += std::log(sum) - logits[i * V + tokens_[i + 1]];
    }
    return loss / static_cast<double>(B * (T - 1));
  }

 private:
  TinyRun run_;
  std::vector<int32_t> tokens_;
};

// What each kind of check sees of a fault, and the loss of a trained model, from what the fault
// does; '?' where it disturbs a check that does not look for it.
struct Row {
  const char* fault;
  char causal, norm, relative, angles, heads, cache, eval, trained;
};

TEST(CheckModel, EachFaultIsSeenByItsChecksAndByNoOther) {
  constexpr Row kRows[] = {
      {"rope_theta", '-', '-', '-', 'y', '-', '-', '-', 'y'},
      {"rope_mixed_layouts", '-', 'y', 'y', 'y', '-', '-', '-', 'y'},
      {"rope_cos_plus_sin", '-', 'y', 'y', 'y', '-', '-', '-', 'y'},
      {"rope_same_angle", '-', '-', '-', 'y', '-', '-', '-', 'y'},
      {"rope_origin", '-', '-', '-', '-', '-', '-', '-', '-'},
      {"gqa_tiled", '-', '-', '-', '-', 'y', '-', '-', 'y'},
      {"gqa_summed", '-', '-', '-', '-', 'y', '-', '-', '?'},
      {"position_restart", '-', '-', '-', '-', '-', 'y', '-', 'y'},
      {"causal_align_top_left", '-', '-', '-', '-', '-', 'y', '-', 'y'},
      {"mask_dropped_on_a_path", '-', '-', '-', '-', '-', 'y', '-', 'y'},
      {"cache_head_stride", '-', '-', '-', '-', '-', 'y', '-', 'y'},
      {"position_upper_layers", '-', '-', '-', '-', '-', 'y', '-', 'y'},
      {"norm_over_sequence", 'y', '-', '-', '-', '-', 'y', '-', 'y'},
      {"mask_01_added", 'y', '-', '-', '-', '-', 'y', '-', 'y'},
      {"softmax_axis_query", 'y', '-', '-', '-', '?', 'y', '-', 'y'},
      {"dropout_live_in_eval", '?', '-', '-', '-', '?', '?', 'y', '?'},
  };
  const TrainedModel trained;
  const double right = trained.Loss(SimdKernels(), /*cached=*/false);
  EXPECT_LT(right, 2.2) << "it has learned something";
  for (const Row& row : kRows) {
    const std::set<std::string> failed = FailedWith(row.fault);
    const auto expect = [&](char want, bool got, const char* check) {
      if (want == '?') return;
      EXPECT_EQ(got, want == 'y') << row.fault << ": " << check;
    };
    expect(row.causal, failed.contains("causality"), "causality");
    expect(row.norm, failed.contains("rope_norm"), "rope_norm");
    expect(row.relative, failed.contains("rope_relative"), "rope_relative");
    expect(row.angles, failed.contains("rope_angles"), "rope_angles");
    expect(row.heads, failed.contains("head_map"), "head_map");
    expect(row.cache, failed.contains("cached") || failed.contains("chunked"), "cache");
    expect(row.eval, failed.contains("eval_repeats"), "eval_repeats");
    const Kernels faulty = *PlantedKernels(row.fault, SimdKernels());
    const double change = std::max(trained.Loss(faulty, false), trained.Loss(faulty, true)) - right;
    expect(row.trained, change > 0.02, "loss of a trained model");
    if (row.trained == '-') {
      EXPECT_NEAR(change, 0, 1e-5) << row.fault;
    }
  }
}

TEST(CheckModel, OtherFaultsAreSeenWhereTheyAct) {
  const std::pair<const char*, const char*> seen[] = {
      {"mask_missing", "causality"},
      {"mask_shifted_by_one", "causality"},
      {"mask_fill_too_weak", "causality_x100"},
      {"norm_over_sequence", "causality_layers"},
      {"scale_missing", "pattern"},
      {"softmax_axis_query", "row_sums"},
      {"heads_merged_untransposed", "causality"},
      {"rope_pairing", "rope_angles"},
      {"rope_cos_plus_sin", "rope_90_degrees"},
      {"rope_gradient_sign", "gradient"},
      {"position_restart", "positions"},
      {"mask_missing", "padding"},
      {"norm_over_sequence", "batch"},
      {"norm_eps_outside_sqrt", "reference"},
      {"gelu_form", "reference"},
      {"labels_shifted_twice", "reference_gradient"},
      {"dropout_unused", "dropout_modes"},
      {"dropout_scaling_missing", "dropout_mean"}};
  for (const auto& [fault, check] : seen) {
    EXPECT_TRUE(FailedWith(fault).contains(check)) << fault << ": " << check;
  }
  // Exact zeros and large scores: a weak mask hides from everything else.
  EXPECT_EQ(FailedWith("mask_fill_too_weak"), std::set<std::string>{"causality_x100"});
}

TEST(CheckModel, ALengthThatTheFirstLayerAdvancesNeedsTwoLayers) {
  const Kernels kernels = *PlantedKernels("position_upper_layers", SimdKernels());
  EXPECT_TRUE(Failed(kernels).contains("chunked"));
  ModelConfig one = Grouped();
  one.n_layer = 1;
  EXPECT_EQ(Failed(kernels, one), std::set<std::string>{});
}

// A shift of all positions changes no score: it is named, not accused.
TEST(CheckModel, AnotherOriginOfPositionsIsAConvention) {
  const CheckResult angles =
      Results(*PlantedKernels("rope_origin", SimdKernels()), Grouped()).at("rope_angles");
  EXPECT_EQ(angles.verdict, CheckVerdict::kOk);
  EXPECT_NE(angles.note.find("count from 1"), std::string::npos) << angles.note;
}

TEST(CheckModel, AMissingScaleIsNamed) {
  const CheckResult pattern =
      Results(*PlantedKernels("scale_missing", SimdKernels()), Grouped()).at("pattern");
  EXPECT_NE(pattern.note.find("no scale at all"), std::string::npos) << pattern.note;
}

TEST(CheckModel, ChecksWithoutAFaultOfTheirOwnFailToo) {
  Kernels kernels = SimdKernels();
  kernels.adamw = [](const AdamwArgs<>&) {};
  EXPECT_EQ(Failed(kernels), std::set<std::string>{"overfit"});
  kernels = SimdKernels();
  kernels.cross_entropy = [](const CrossEntropyArgs<>& args) {
    SimdKernels().cross_entropy(args);
    for (int64_t r = 0; r < args.rows; ++r) args.loss[r] *= 2;
  };
  EXPECT_TRUE(Failed(kernels).contains("start_loss"));
  kernels = SimdKernels();
  kernels.attention_forward = [](const AttentionArgs<>& args) {
    SimdKernels().attention_forward(args);
    args.z[0] += 1e-3f * static_cast<float>(NumThreads());
  };
  EXPECT_TRUE(Failed(kernels).contains("threads"));
}

TEST(CheckModel, ANumberThatIsNotFiniteFailsTheFirstCheck) {
  auto model = *Gpt::Create(Grouped(), SimdKernels());
  model->Initialize(1);
  model->parameters().Find("ln_f.weight")->data[0] = std::numeric_limits<float>::quiet_NaN();
  const Result<CheckReport> report = CheckModel(std::move(model), /*seed=*/1);
  ASSERT_TRUE(report);
  ASSERT_NE(report->FirstFailed(), nullptr);
  EXPECT_EQ(report->FirstFailed()->name, "shapes");
}

TEST(CheckModel, EveryCheckIsAnnouncedInOrder) {
  std::vector<std::string> told;
  const auto report = CheckFreshModel(Grouped(), SimdKernels(), /*seed=*/1,
                                      [&](std::string_view next, int64_t done, int64_t total) {
                                        EXPECT_EQ(done, std::ssize(told));
                                        EXPECT_GT(total, done);
                                        told.emplace_back(next);
                                      });
  ASSERT_TRUE(report);
  ASSERT_EQ(told.size(), report->results.size());
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], report->results[i].name);
}

TEST(CheckModel, LeavesTheNumberOfThreadsAlone) {
  SetNumThreads(2);
  Failed(SimdKernels());
  EXPECT_EQ(NumThreads(), 2);
}

TEST(PlantedKernels, AnUnknownNameIsAnsweredWithTheNearestAndAll) {
  const auto kernels = PlantedKernels("mask_mising", SimdKernels());
  ASSERT_FALSE(kernels);
  EXPECT_EQ(kernels.error().hint, "did you mean mask_missing?");
  for (const PlantedFault& fault : PlantedFaults()) {
    EXPECT_NE(kernels.error().expected.find(fault.name), std::string::npos) << fault.name;
  }
}

}  // namespace
}  // namespace heed
