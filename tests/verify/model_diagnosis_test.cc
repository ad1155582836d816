#include "verify/diagnose/model_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "model/folder.h"
#include "support/checks.h"
#include "support/planted_model.h"
#include "support/temporary_folder.h"
#include "verify/planted.h"

namespace heed {
namespace {

// The last n positions of tokens [B, T], by `later` behind a cache that `model` filled.
std::vector<double> DecodedBy(const Gpt& model, const Gpt& later,
                              const std::vector<int32_t>& tokens, int64_t B, int64_t n) {
  const int64_t V = model.config().vocab_size, T = int64_t(tokens.size()) / B;
  auto cache = *KvCache::Create(model.config(), B, T);
  std::vector<float> logits(B * T * V);
  int64_t at = 0;
  for (const int64_t size : {T - n, n}) {
    const Gpt& now = at == 0 ? model : later;
    auto activations = *Activations::Create(now, B, T, /*training=*/false);
    std::vector<int32_t> piece;
    for (int64_t b = 0; b < B; ++b) {
      piece.insert(piece.end(), &tokens[b * T + at], &tokens[b * T + at] + size);
    }
    Pass pass = now.NewPass(B, size);
    const std::vector<KeyValueCache> layers = cache->Extend(0, B, size, &pass.offsets);
    const float* x = now.Forward(pass, piece.data(), activations.get(), layers);
    now.Logits(pass, x, B * size, activations.get(), logits.data());
    at += size;
  }
  return {logits.begin(), logits.begin() + B * n * V};
}

// A golden model's folder, and the same model run with something wrong in it.
class GoldenDump {
 public:
  // With settings changed by `change`.
  explicit GoldenDump(const std::string& name,
                      const std::function<void(ModelConfig*)>& change = nullptr)
      : golden_(Golden::Load(name)) {
    model_ = GoldenModel(golden_, SimdKernels());
    if (change) {
      ModelConfig config = model_->config();
      change(&config);
      model_ = Other(SimdKernels(), config);
    }
    const Status saved = SaveModel(folder_.path() + "/model", *model_, nullptr, false);
    EXPECT_TRUE(saved) << saved.error().Message();
    tokens_ = golden_.Tokens("tokens");
    B_ = golden_.file.Find("tokens")->shape[0];
    T_ = int64_t(tokens_.size()) / B_;
  }

  const Gpt& model() const { return *model_; }
  ParameterSet& parameters() const { return model_->parameters(); }
  int64_t B() const { return B_; }
  int64_t T() const { return T_; }
  std::vector<double> Expected() const { return *golden_.file.Doubles("expect.logits"); }

  // The model under other kernels or other settings, with its weights changed by `change`.
  std::unique_ptr<Gpt> Other(const Kernels& kernels, const ModelConfig& config,
                             const std::function<void(ParameterSet*)>& change = nullptr) const {
    auto other = *Gpt::Create(config, kernels);
    for (Parameter& p : other->parameters().all()) {
      const std::vector<float> values = golden_.Floats(p.name);
      std::copy(values.begin(), values.end(), p.data);
    }
    if (change) change(&other->parameters());
    return other;
  }

  std::vector<double> LogitsOf(const Gpt& model) const {
    const std::vector<float> logits = FullLogits(model, tokens_, B_);
    return {logits.begin(), logits.end()};
  }

  std::vector<double> Decoded(const Gpt& model, int64_t n) const {
    return DecodedBy(model, model, tokens_, B_, n);
  }

  TensorSet Set(const std::vector<double>& logits, DType dtype = DType::kF32) const {
    TensorSet set;
    set["tokens"] = {{B_, T_}, {tokens_.begin(), tokens_.end()}, DType::kI64};
    set["logits"] = {{B_, T_, model_->config().vocab_size}, logits, dtype};
    return set;
  }

  Result<Diagnosis> Diagnose(const TensorSet& set) const {
    const TensorFile file = set.File();
    return DiagnoseModel(file, "dump", {}, folder_.path() + "/model");
  }

  std::string FindingOf(const Gpt& model) const { return Finding(Diagnose(Set(LogitsOf(model)))); }

 private:
  Golden golden_;
  TemporaryFolder folder_;
  std::unique_ptr<Gpt> model_;
  std::vector<int32_t> tokens_;
  int64_t B_ = 0, T_ = 0;
};

TEST(ModelDiagnosisTest, GoldenLogitsAreCorrect) {
  for (const char* name : {"gpt2-learned", "gpt2-rope-gqa", "gpt2-rope-interleaved-mqa",
                           "gpt2-sinusoidal", "gpt2-no-bias", "llama-gqa", "llama-mqa-tied"}) {
    const GoldenDump dump(name);
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      EXPECT_EQ(Finding(dump.Diagnose(dump.Set(dump.Expected(), dtype))), "correct")
          << name << " " << NameOf(dtype);
    }
    EXPECT_EQ(dump.FindingOf(dump.model()), "correct") << name << " computed in float32";
  }
}

TEST(ModelDiagnosisTest, FaultyKernelsAreNamed) {
  const std::pair<const char*, std::vector<const char*>> kCases[] = {
      {"gpt2-learned",
       {"mask_missing", "mask_shifted_by_one", "mask_01_added", "scale_missing",
        "softmax_axis_query", "heads_merged_untransposed", "gelu_form"}},
      {"gpt2-rope-gqa", {"gqa_tiled", "rope_pairing", "rope_mixed_layouts", "rope_cos_plus_sin"}},
      {"llama-gqa", {"gqa_tiled", "rope_pairing", "mask_missing"}}};
  for (const auto& [name, faults] : kCases) {
    const GoldenDump dump(name);
    for (const char* fault : faults) {
      const Kernels kernels = *PlantedKernels(fault, SimdKernels());
      EXPECT_EQ(dump.FindingOf(*dump.Other(kernels, dump.model().config())), fault) << name;
    }
  }
}

TEST(ModelDiagnosisTest, OtherSettingsThanTheFoldersAreNamed) {
  const GoldenDump dump("llama-gqa");
  ModelConfig config = dump.model().config();
  config.rope_theta = 500000;
  EXPECT_EQ(dump.FindingOf(*dump.Other(SimdKernels(), config)), "rope_theta");
  config = dump.model().config();
  config.norm_eps = 1e-3;
  EXPECT_EQ(dump.FindingOf(*dump.Other(SimdKernels(), config)), "norm_eps_value");
}

TEST(ModelDiagnosisTest, OtherWeightsThanTheFoldersAreNamed) {
  const auto scaled = [](const char* name, double factor, double offset) {
    return [=](ParameterSet* parameters) {
      for (Parameter& p : parameters->all()) {
        if (p.name.find(name) == std::string::npos) continue;
        for (int64_t i = 0; i < p.elements; ++i) p.data[i] = float(p.data[i] * factor + offset);
      }
    };
  };
  const GoldenDump llama("llama-gqa");
  const auto finding = [](const GoldenDump& dump, const auto& change) {
    return dump.FindingOf(*dump.Other(SimdKernels(), dump.model().config(), change));
  };
  EXPECT_EQ(finding(llama, scaled("embed_tokens", std::sqrt(32.0), 0)), "embedding_scale");
  EXPECT_EQ(finding(llama, scaled("norm", 1, 1)), "norm_gain_plus_one");
  EXPECT_EQ(finding(llama,
                    [](ParameterSet* p) {
                      Parameter* head = p->Find("lm_head.weight");
                      std::copy_n(p->Find("model.embed_tokens.weight")->data, head->elements,
                                  head->data);
                    }),
            "head_untied");
  const GoldenDump gpt2("gpt2-learned");
  EXPECT_EQ(finding(gpt2, scaled("ln_", 1, 0)), "correct");
  EXPECT_EQ(finding(gpt2, scaled("mlp.c_proj.bias", 0, 0)), "mlp_bias_missing");
  EXPECT_EQ(finding(gpt2, scaled("wpe", 0, 0)), "position_missing");
  for (const auto& [rows, fault] :
       {std::pair(1, "position_offset_one"), std::pair(2, "position_offset_two")}) {
    EXPECT_EQ(finding(gpt2,
                      [rows = rows](ParameterSet* p) {
                        Parameter* wpe = p->Find("wpe.weight");
                        const int64_t C = wpe->shape[1];
                        std::copy(wpe->data + rows * C, wpe->data + wpe->elements, wpe->data);
                      }),
              fault);
  }
}

// A tied model whose head was left at other numbers: 51 positions know 32 channels.
TEST(ModelDiagnosisTest, AnyOtherHeadIsNamed) {
  const GoldenDump dump("gpt2-learned");
  ModelConfig config = dump.model().config();
  config.tied = false;
  auto other = *Gpt::Create(config, SimdKernels());
  other->Initialize(3);
  for (Parameter& p : other->parameters().all()) {
    if (p.name == "lm_head.weight") continue;
    std::copy_n(dump.parameters().Find(p.name)->data, p.elements, p.data);
  }
  EXPECT_EQ(dump.FindingOf(*other), "head_untied");
}

// The right head times a number is no other head.
TEST(ModelDiagnosisTest, AFactorOfTheLogitsIsNoOtherHead) {
  const GoldenDump dump("gpt2-learned");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<double> logits = dump.Expected();
    for (double& logit : logits) logit *= 0.0625;
    const auto diagnosis = dump.Diagnose(dump.Set(logits, dtype));
    ASSERT_TRUE(diagnosis.has_value());
    EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kUnexplained);
    EXPECT_THAT(diagnosis->seen, testing::Contains(testing::HasSubstr("times 0.0625")));
  }
}

// As many positions as channels: some head fits any logits.
TEST(ModelDiagnosisTest, AHeadThatFitsAnythingIsNotNamed) {
  const GoldenDump dump("gpt2-learned");
  const int64_t C = dump.model().config().n_embd, V = dump.model().config().vocab_size;
  for (const int64_t rows : {C - 1, C, C + 1}) {
    TensorSet set;
    std::vector<double> tokens, logits;
    for (int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<double>(i % V));
    for (int64_t i = 0; i < rows * V; ++i) {
      logits.push_back(RandomNormal({5, 0, 0}, static_cast<uint64_t>(i)));
    }
    set["tokens"] = {{rows, 1}, tokens, DType::kI64};
    set["logits"] = {{rows, 1, V}, logits, DType::kF32};
    EXPECT_EQ(Finding(dump.Diagnose(set)), "unexplained") << rows;
  }
}

TEST(ModelDiagnosisTest, DecodingFaultsAreNamed) {
  for (const char* name : {"gpt2-learned", "gpt2-rope-gqa", "llama-gqa"}) {
    const GoldenDump dump(name);
    constexpr int64_t kNew = 3;
    const int64_t V = dump.model().config().vocab_size;
    for (const char* fault : {"correct", "position_restart", "causal_align_top_left"}) {
      const Kernels kernels =
          fault == std::string("correct") ? SimdKernels() : *PlantedKernels(fault, SimdKernels());
      const auto other = dump.Other(kernels, dump.model().config());
      TensorSet set = dump.Set(dump.Expected());
      set["decode_logits"] = {{dump.B(), kNew, V}, dump.Decoded(*other, kNew), DType::kF32};
      EXPECT_EQ(Finding(dump.Diagnose(set)), fault) << name;
    }
  }
}

std::vector<double> PlainLogits(const GoldenDump& dump, const std::string& fault) {
  return PlainGpt(dump.parameters(), dump.model().config(), fault)
      .Of(dump.Set({}).tensors.at("tokens").values, dump.B());
}

void Windowed(ModelConfig* config) { config->sliding_window = 3; }
void Scaled(ModelConfig* config, RopeStretch type) { config->rope_scaling = {type, 4, 4}; }

// A program that does what the folder says is right, and one that does not is named.
TEST(ModelDiagnosisTest, WindowsAndScaledPositionsOfFoldersAreKept) {
  const std::pair<std::string, std::function<void(ModelConfig*)>> kCases[] = {
      {"window_sign", Windowed},  // the first name of no window at all
      {"rope_scaling_missing", [](ModelConfig* c) { Scaled(c, RopeStretch::kLinear); }},
      {"rope_scaling_missing", [](ModelConfig* c) { Scaled(c, RopeStretch::kLlama3); }},
      {"rope_scaling_missing", [](ModelConfig* c) { Scaled(c, RopeStretch::kYarn); }}};
  for (const auto& [fault, change] : kCases) {
    const GoldenDump dump("llama-gqa", change);
    TensorSet set = dump.Set(dump.LogitsOf(dump.model()));
    EXPECT_EQ(Finding(dump.Diagnose(set)), "correct") << fault;
    const int64_t n = 2, V = dump.model().config().vocab_size;
    set["decode_logits"] = {{dump.B(), n, V}, dump.Decoded(dump.model(), n), DType::kF32};
    EXPECT_EQ(Finding(dump.Diagnose(set)), "correct") << fault;
    ModelConfig lost = dump.model().config();
    lost.sliding_window = 0;
    lost.rope_scaling = {};
    EXPECT_EQ(dump.FindingOf(*dump.Other(SimdKernels(), lost)), fault);
  }
}

TensorSet Stated(TensorSet set, const std::map<std::string, std::string>& settings) {
  set.settings.insert(settings.begin(), settings.end());
  return set;
}

// Angles four times as large, as of positions that were to be divided by 4. Twice would be
// rope_twice as well.
TEST(ModelDiagnosisTest, MissingScalingOfPositionsIsNamed) {
  Kernels kernels = SimdKernels();
  kernels.rope = [](const RopeArgs<>& args) {
    int64_t positions = args.offset + args.T_;
    for (int64_t b = 0; b < args.B && args.offsets != nullptr; ++b) {
      positions = std::max(positions, args.offsets[b] + args.T_);
    }
    std::vector<float> cos(positions * args.half), sin(positions * args.half);
    for (int64_t i = 0; i < positions * args.half; ++i) {
      const double c = args.cos[i], s = args.sin[i];
      const double c2 = c * c - s * s, s2 = 2 * s * c;
      cos[i] = float(c2 * c2 - s2 * s2);
      sin[i] = float(2 * s2 * c2);
    }
    RopeArgs<> stretched = args;
    stretched.cos = cos.data();
    stretched.sin = sin.data();
    SimdKernels().rope(stretched);
  };
  for (const char* name : {"llama-gqa", "gpt2-rope-gqa"}) {
    const GoldenDump dump(name);
    EXPECT_EQ(dump.FindingOf(*dump.Other(kernels, dump.model().config())), "rope_scaling_missing");
  }
}

// Transformer-Clinic#27: a residual behind the norm is right for a model that is so.
TEST(FalseAlarm, ResidualBehindTheNormIsRightForPostNorm) {
  const GoldenDump dump("gpt2-learned");
  const TensorSet pre = dump.Set(PlainLogits(dump, ""));
  EXPECT_EQ(Finding(dump.Diagnose(pre)), "correct");
  const TensorSet post = dump.Set(PlainLogits(dump, "norm_after_branch"));
  EXPECT_EQ(Finding(dump.Diagnose(post)), "norm_after_branch");
  EXPECT_EQ(Finding(dump.Diagnose(Stated(post, {{"norm_position", "post"}}))), "correct");
}

// attention-is-all-you-need-pytorch#138: the embedding times sqrt(n_embd), or, with an embedding
// that holds the factor, the logits by it.
TEST(FalseAlarm, TheRootOfTheWidthMayMoveFromTheEmbeddingToTheLogits) {
  const GoldenDump dump("gpt2-learned");
  const double root = std::sqrt(double(dump.model().config().n_embd));
  const auto scaled = [](double factor) {
    return [=](ParameterSet* parameters) {
      Parameter* wte = parameters->Find("wte.weight");
      for (int64_t i = 0; i < wte->elements; ++i) wte->data[i] = float(wte->data[i] * factor);
    };
  };
  // The folder's embedding times sqrt(C) goes in; the tied head would hold it too, and is undone.
  const auto moved = dump.Other(SimdKernels(), dump.model().config(), scaled(root));
  std::vector<double> logits = dump.LogitsOf(*moved);
  for (double& z : logits) z /= root;
  TensorSet set = dump.Set(logits);
  EXPECT_EQ(Finding(dump.Diagnose(set)), "embedding_scale");
  set.settings["embedding_multiplier"] = std::to_string(root);
  EXPECT_EQ(Finding(dump.Diagnose(set)), "correct");
  for (double& z : set["logits"].values) z *= root;
  EXPECT_EQ(Finding(dump.Diagnose(set)), "embedding_scale");
  set.settings["logit_scale"] = std::to_string(root);
  EXPECT_EQ(Finding(dump.Diagnose(set)), "correct");
  EXPECT_THAT(Finding(dump.Diagnose(Stated(dump.Set(dump.Expected()), {{"logit_scale", "-1"}}))),
              testing::HasSubstr("logit_scale: found -1"));
}

// transformers#36536: decoding and the whole run differ in 16 bits, for their products round
// otherwise.
TEST(FalseAlarm, DecodingIn16BitsRoundsOtherwise) {
  for (const char* name : {"gpt2-learned", "gpt2-rope-gqa", "llama-gqa"}) {
    const GoldenDump dump(name);
    constexpr int64_t kNew = 3;
    const int64_t V = dump.model().config().vocab_size;
    const auto coarse = dump.Other(SimdKernels(), dump.model().config());
    coarse->set_arithmetic(Arithmetic::kBf16);
    TensorSet set = dump.Set(dump.LogitsOf(*coarse), DType::kBF16);
    set["decode_logits"] = {{dump.B(), kNew, V}, dump.Decoded(dump.model(), kNew), DType::kBF16};
    EXPECT_EQ(Finding(dump.Diagnose(set)), "correct") << name;
    set = dump.Set(dump.LogitsOf(dump.model()));
    set["decode_logits"] = {{dump.B(), kNew, V}, dump.Decoded(dump.model(), kNew), DType::kF32};
    EXPECT_EQ(Finding(dump.Diagnose(set)), "correct") << name;
  }
}

TEST(ModelDiagnosisTest, TwoFaultsAreNamedTogether) {
  const GoldenDump dump("llama-gqa");
  const Kernels kernels = *PlantedKernels("gqa_tiled", SimdKernels());
  ModelConfig config = dump.model().config();
  config.norm_eps = 1e-2;
  EXPECT_THAT(dump.FindingOf(*dump.Other(kernels, config)),
              testing::AllOf(testing::HasSubstr("gqa_tiled"), testing::HasSubstr("norm_eps_value"),
                             testing::Not(testing::HasSubstr("|"))));
}

// Statistics over the whole sequence, which the search does not know for models.
TEST(ModelDiagnosisTest, UnknownFaultIsNotNamed) {
  const GoldenDump dump("gpt2-no-bias");
  const Kernels kernels = *PlantedKernels("norm_over_sequence", SimdKernels());
  EXPECT_EQ(dump.FindingOf(*dump.Other(kernels, dump.model().config())), "unexplained");
}

// A row's own tokens, alone, are what padding must not change.
TEST(ModelDiagnosisTest, PaddedRowsAreRightWhenPaddingDoesNotShow) {
  const GoldenDump dump("gpt2-learned");
  constexpr int64_t kPads = 4;
  const int64_t T = dump.T(), V = dump.model().config().vocab_size;
  TensorSet set = dump.Set(dump.Expected());
  Array& logits = set["logits"];
  Array mask{{dump.B(), T}, std::vector<double>(dump.B() * T, 1), DType::kI64};
  std::fill_n(mask.values.begin(), kPads, 0.0);
  std::vector<int32_t> alone;
  for (int64_t t = kPads; t < T; ++t) alone.push_back(int32_t(set["tokens"].values[t]));
  const std::vector<float> right = FullLogits(dump.model(), alone, 1);
  std::copy(right.begin(), right.end(), logits.values.begin() + kPads * V);
  set["attention_mask"] = mask;
  EXPECT_EQ(Finding(dump.Diagnose(set)), "correct");

  // Positions from the padding: rows kPads and later of the table.
  const auto shifted = dump.Other(SimdKernels(), dump.model().config(), [](ParameterSet* p) {
    Parameter* wpe = p->Find("wpe.weight");
    std::copy(wpe->data + kPads * wpe->shape[1], wpe->data + wpe->elements, wpe->data);
  });
  const std::vector<float> wrong = FullLogits(*shifted, alone, 1);
  std::copy(wrong.begin(), wrong.end(), logits.values.begin() + kPads * V);
  EXPECT_EQ(Finding(dump.Diagnose(set)), "left_pad_positions");
}

// The first tap that departs is where it shows.
TEST(ModelDiagnosisTest, TapsTellWhereItShows) {
  const GoldenDump dump("gpt2-learned");
  const Kernels kernels = *PlantedKernels("gelu_form", SimdKernels());
  const auto other = dump.Other(kernels, dump.model().config());
  TensorSet set = dump.Set(dump.LogitsOf(*other));
  const Gpt& model = dump.model();
  const int64_t C = model.config().n_embd;
  std::vector<double> embedded;
  const float* wte = other->parameters().Find("wte.weight")->data;
  const float* wpe = other->parameters().Find("wpe.weight")->data;
  for (int64_t r = 0; r < dump.B() * dump.T(); ++r) {
    const auto token = int64_t(set["tokens"].values[r]);
    for (int64_t c = 0; c < C; ++c) {
      embedded.push_back(double(wte[token * C + c]) + double(wpe[(r % dump.T()) * C + c]));
    }
  }
  set["blocks.0.hook_resid_pre"] = {{dump.B(), dump.T(), C}, embedded, DType::kF32};
  auto diagnosis = dump.Diagnose(set);
  EXPECT_EQ(Finding(diagnosis), "gelu_form");
  ASSERT_TRUE(diagnosis->first_difference);
  EXPECT_EQ(diagnosis->first_difference->tensor, "logits");
  for (double& value : embedded) value *= std::sqrt(double(C));
  set["blocks.0.hook_resid_pre"].values = embedded;
  diagnosis = dump.Diagnose(set);
  ASSERT_TRUE(diagnosis && diagnosis->first_difference);
  EXPECT_EQ(diagnosis->first_difference->tensor, "blocks.0.hook_resid_pre");
  set["blocks.0.hook_resid_pre"].shape = {dump.B() * dump.T(), C};
  EXPECT_THAT(Finding(dump.Diagnose(set)), testing::HasSubstr("blocks.0.hook_resid_pre"));
}

// Rows of a dump with other amounts of padding, on one side; logits of the rows alone.
class PaddedDump {
 public:
  PaddedDump(const GoldenDump& dump, bool left) : dump_(dump), left_(left) {
    set_ = dump.Set(dump.Expected());
    Array mask{{dump.B(), dump.T()}, {}, DType::kI64};
    for (int64_t b = 0; b < dump.B(); ++b) {
      for (int64_t t = 0; t < dump.T(); ++t) mask.values.push_back(IsToken(b, t) ? 1 : 0);
    }
    set_["attention_mask"] = mask;
    Fill([&](int64_t b) { return FullLogits(dump.model(), TokensOf(b), 1); }, First());
  }

  TensorSet& set() { return set_; }
  std::string Finding() const { return heed::Finding(dump_.Diagnose(set_)); }
  int64_t Pads(int64_t b) const { return 2 + b; }
  int64_t Count(int64_t b) const { return dump_.T() - Pads(b); }
  int64_t FirstOf(int64_t b) const { return left_ ? Pads(b) : 0; }
  bool IsToken(int64_t b, int64_t t) const { return t >= FirstOf(b) && t < FirstOf(b) + Count(b); }
  // From the first token to the last, or with the padding before it.
  std::vector<int32_t> TokensOf(int64_t b, bool with_pads = false) const {
    const auto row = set_.tensors.at("tokens").values.begin() + b * dump_.T();
    return {row + (with_pads ? 0 : FirstOf(b)), row + FirstOf(b) + Count(b)};
  }
  // Logits [n, V] of each row, put from position `at(b)` on; everything else is noise.
  template <class LogitsOf, class At>
  void Fill(const LogitsOf& logits_of, const At& at) {
    Array& logits = set_["logits"];
    const int64_t V = dump_.model().config().vocab_size;
    for (size_t i = 0; i < logits.values.size(); ++i) logits.values[i] = std::sin(double(i));
    for (int64_t b = 0; b < dump_.B(); ++b) {
      const std::vector<float> row = logits_of(b);
      std::copy(row.begin(), row.end(), logits.values.begin() + (b * dump_.T() + at(b)) * V);
    }
  }
  std::function<int64_t(int64_t)> First() const {
    return [this](int64_t b) { return FirstOf(b); };
  }

 private:
  const GoldenDump& dump_;
  const bool left_;
  TensorSet set_;
};

TEST(ModelDiagnosisTest, PaddingOnEitherSideIsRightWhereItDoesNotShow) {
  for (const char* name : {"gpt2-learned", "gpt2-rope-gqa", "llama-gqa"}) {
    const GoldenDump dump(name);
    for (const bool left : {true, false}) {
      EXPECT_EQ(PaddedDump(dump, left).Finding(), "correct") << name << left;
    }
  }
}

TEST(ModelDiagnosisTest, PaddingThatTakesPartIsNamed) {
  for (const char* name : {"gpt2-rope-gqa", "llama-gqa"}) {
    const GoldenDump dump(name);
    PaddedDump padded(dump, /*left=*/true);
    padded.Fill([&](int64_t b) { return FullLogits(dump.model(), padded.TokensOf(b, true), 1); },
                [](int64_t) { return 0; });
    EXPECT_EQ(padded.Finding(), "padding_not_masked") << name;
  }
}

TEST(ModelDiagnosisTest, FaultsBesidePaddingAreNamed) {
  const GoldenDump dump("llama-gqa");
  for (const char* fault : {"gqa_tiled", "rope_pairing", "mask_missing"}) {
    const Kernels kernels = *PlantedKernels(fault, SimdKernels());
    const auto other = dump.Other(kernels, dump.model().config());
    PaddedDump padded(dump, /*left=*/true);
    padded.Fill([&](int64_t b) { return FullLogits(*other, padded.TokensOf(b), 1); },
                padded.First());
    EXPECT_EQ(padded.Finding(), fault);
  }
}

// The last positions again, whose table rows are counted from the padding behind the cache alone.
TEST(ModelDiagnosisTest, DecodingBesidePaddingIsJudged) {
  const GoldenDump dump("gpt2-learned");
  const int64_t V = dump.model().config().vocab_size, C = dump.model().config().n_embd;
  constexpr int64_t kNew = 3;
  for (const bool left : {true, false}) {
    for (const bool from_pad : {false, true}) {
      if (from_pad && !left) continue;
      PaddedDump padded(dump, left);
      Array decoded{{dump.B(), kNew, V}, {}, DType::kF32};
      for (int64_t b = 0; b < dump.B(); ++b) {
        const int64_t shift = from_pad ? padded.Pads(b) : 0;
        const auto later = dump.Other(SimdKernels(), dump.model().config(), [&](ParameterSet* p) {
          Parameter* wpe = p->Find("wpe.weight");
          std::copy(wpe->data + shift * C, wpe->data + wpe->elements, wpe->data);
        });
        const std::vector<double> row =
            DecodedBy(dump.model(), *later, padded.TokensOf(b), 1, kNew);
        decoded.values.insert(decoded.values.end(), row.begin(), row.end());
      }
      padded.set()["decode_logits"] = decoded;
      EXPECT_EQ(padded.Finding(), from_pad ? "left_pad_positions" : "correct") << left;
    }
  }
}

// Embeddings under the name of either library, with noise at padding.
TEST(ModelDiagnosisTest, TapsBesidePaddingAreComparedAtTokens) {
  const GoldenDump dump("llama-gqa");
  const int64_t C = dump.model().config().n_embd;
  const float* embedding = dump.parameters().Find("model.embed_tokens.weight")->data;
  for (const char* name : {"hidden_states.0", "blocks.0.hook_resid_pre"}) {
    for (const bool left : {true, false}) {
      PaddedDump padded(dump, left);
      Array tap{{dump.B(), dump.T(), C}, {}, DType::kF32};
      for (int64_t r = 0; r < dump.B() * dump.T(); ++r) {
        const auto token = static_cast<int64_t>(padded.set()["tokens"].values[r]);
        const bool counts = padded.IsToken(r / dump.T(), r % dump.T());
        for (int64_t c = 0; c < C; ++c) {
          tap.values.push_back(counts ? double(embedding[token * C + c]) : std::sin(double(r + c)));
        }
      }
      padded.set()[name] = tap;
      EXPECT_EQ(padded.Finding(), "correct") << name << left;
      const int64_t at = (padded.FirstOf(0) + 1) * C;
      padded.set()[name].values[at] += 1;
      const auto diagnosis = dump.Diagnose(padded.set());
      ASSERT_TRUE(diagnosis && diagnosis->first_difference);
      EXPECT_EQ(diagnosis->first_difference->tensor, name);
      EXPECT_EQ(diagnosis->first_difference->index,
                (std::vector<int64_t>{0, padded.FirstOf(0) + 1, 0}));
    }
  }
}

TEST(ModelDiagnosisTest, BadDumpsAreRefused) {
  const GoldenDump dump("gpt2-pico");
  const TensorSet good = dump.Set(dump.Expected());
  TensorSet set = good;
  set["tokens"].values[3] = 10;
  EXPECT_THAT(Finding(dump.Diagnose(set)), testing::HasSubstr("\"tokens\": found 10 at [0, 3]"));
  set = good;
  set["logits"].shape = {dump.T(), dump.B(), 10};
  EXPECT_THAT(Finding(dump.Diagnose(set)), testing::HasSubstr("\"logits\": found"));
  set = good;
  set["logits"].values[5] = std::nan("");
  EXPECT_THAT(Finding(dump.Diagnose(set)), testing::HasSubstr("found nan at [0, 0, 5]"));
  set = good;
  set["attention_mask"] = {
      {dump.B(), dump.T()}, std::vector<double>(dump.B() * dump.T(), 0), DType::kI64};
  EXPECT_THAT(Finding(dump.Diagnose(set)), testing::HasSubstr("attention_mask"));
}

}  // namespace
}  // namespace heed
