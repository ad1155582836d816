// What a search by the first tokens must not lose.
#include "verify/diagnose/model_screen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "model/folder.h"
#include "support/checks.h"
#include "support/planted_dump.h"
#include "support/targets.h"
#include "support/temporary_folder.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/model_diagnosis.h"
#include "verify/diagnose/product.h"
#include "verify/planted.h"

namespace heed {
namespace {

// Every product and sum by hand, in sizes that no vector divides.
TEST(ReplayProductTest, SumsEveryProduct) {
  ForEachTarget([] {
    for (const auto& [M, N, K] :
         {std::array<int64_t, 3>{1, 1, 1}, {2, 4, 8}, {3, 5, 7}, {7, 9, 21}, {4, 3, 33}}) {
      std::vector<double> a(M * K), b(N * K), c(M * N);
      for (int64_t i = 0; i < M * K; ++i) a[i] = static_cast<double>(i * 7 % 11 - 5);
      for (int64_t i = 0; i < N * K; ++i) b[i] = static_cast<double>(i * 5 % 13 - 6);
      for (int64_t i = 0; i < M * N; ++i) c[i] = static_cast<double>(i);
      const std::vector<float> floats(b.begin(), b.end());
      std::vector<double> want = c, by_floats = c;
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < N; ++n) {
          for (int64_t k = 0; k < K; ++k) want[m * N + n] += a[m * K + k] * b[n * K + k];
        }
      }
      AddProduct(a, b, M, N, K, c);
      AddProduct(a, floats, M, N, K, by_floats);
      EXPECT_EQ(c, want) << M << " " << N << " " << K;
      EXPECT_EQ(by_floats, want) << M << " " << N << " " << K;
    }
  });
}

ModelConfig Small(bool rope) {
  ModelConfig config;
  config.n_layer = 2;
  config.n_head = 4;
  config.n_kv_head = rope ? 2 : 4;
  config.n_embd = 16;
  config.block_size = 40;
  config.vocab_size = 1100;  // more than are looked at
  config.tied = !rope;
  if (rope) config = AsLlama(config);
  EXPECT_TRUE(config.Resolve());
  return config;
}

using Edit = std::function<void(ParameterSet*)>;

std::unique_ptr<Gpt> Make(const ModelConfig& config, const Kernels& kernels, const Edit& edit) {
  auto model = *Gpt::Create(config, kernels);
  model->Initialize(3);
  // As far from a start as a trained model is.
  for (Parameter& p : model->parameters().all()) {
    for (int64_t i = 0; i < p.elements; ++i) {
      p.data[i] = p.shape.size() < 2 ? p.data[i] + 0.2F * std::sin(static_cast<float>(i + 1))
                                     : 10 * p.data[i];
    }
  }
  edit(&model->parameters());
  return model;
}

const Edit kNoEdit = [](ParameterSet*) {};

// What the search says of a model beside the folder of another one.
std::string FindingOf(const Gpt& folder_model, const Gpt& theirs,
                      const std::vector<int32_t>& tokens, int64_t B, DType dtype = DType::kF32) {
  const TemporaryFolder folder;
  const Status saved = SaveModel(folder.path() + "/model", folder_model, nullptr, false);
  EXPECT_TRUE(saved) << saved.error().Message();
  const std::vector<float> logits = FullLogits(theirs, tokens, B);
  const int64_t T = std::ssize(tokens) / B;
  TensorSet set;
  set["tokens"] = {{B, T}, {tokens.begin(), tokens.end()}, DType::kI64};
  set["logits"] = {{B, T, theirs.config().vocab_size}, {logits.begin(), logits.end()}, dtype};
  const TensorFile file = set.File();
  return Finding(DiagnoseModel(file, "dump", {}, folder.path() + "/model"));
}

std::vector<int32_t> Tokens(int64_t n) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(i * i * 37 % 1100));
  return tokens;
}

// Every way to be wrong that the catalogue has, held against itself and against the right one: no
// bound lies above a whole replay's residual.
TEST(ModelScreenTest, BoundsLieBelowWholeReplays) {
  for (const bool rope : {false, true}) {
    const ModelConfig config = Small(rope);
    const auto model = Make(config, SimdKernels(), kNoEdit);
    ModelInput input;
    input.B = 2;
    input.T = 20;
    for (const int32_t token : Tokens(input.B * input.T)) input.tokens.push_back(token);
    input.first = {0, 0};
    input.count = {input.T, input.T};
    ModelReplay replay(model.get(), input);
    const ModelRecipe right = RightRecipe(config);
    AttentionFacts facts;
    facts.B = input.B;
    facts.T = facts.S = input.T;
    facts.C = config.n_embd;
    facts.H = config.n_head;
    facts.Hkv = config.n_kv_head;
    facts.D = config.head_dim;
    facts.rotary = rope ? config.rotary_dim : 0;
    facts.theta = config.rope_theta;
    facts.largest_score = 100;
    facts.weights = facts.layout_stated = facts.pairing_stated = facts.half = true;
    facts.fused = !rope;
    facts.biases = rope ? 0 : kAllProj;
    facts.square = rope ? kQProj | kOProj : kOProj;
    std::vector<std::pair<std::string, ModelRecipe>> recipes = {{"right", right}};
    for (const AttentionFault& fault : AttentionFaultTable()) {
      const auto add = [&](const auto& change) {
        recipes.emplace_back(fault.kind.id, right);
        change(&recipes.back().second.attention);
      };
      for (const Variant& variant :
           fault.variants ? fault.variants(facts) : std::vector<Variant>()) {
        add(variant.change);
      }
      for (const FittedFault& fit : fault.fits ? fault.fits(facts) : std::vector<FittedFault>()) {
        for (const double value : fit.grid) {
          add([&](AttentionRecipe* recipe) { fit.change(value, recipe); });
        }
      }
    }
    ASSERT_GT(recipes.size(), 60);
    const std::vector<double> right_logits = replay.Run(right)[0];
    int64_t told = 0;
    for (const auto& [name, recipe] : recipes) {
      const std::vector<double> logits = replay.Run(recipe)[0];
      for (const auto& bound : BoundsOf(&replay, input, logits, right)) {
        EXPECT_LE(bound(recipe), 1e-11) << name;
      }
      for (const auto& bound : BoundsOf(&replay, input, right_logits, right)) {
        const double least = bound(recipe);
        EXPECT_LE(least, Residual(right_logits, logits) * (1 + 1e-9) + 1e-11) << name;
        told += least > 1e-3;
      }
    }
    // And some say something.
    EXPECT_GT(told, 30);
  }
}

// Rows 0 to 10 of the table are equal: a table read one row further shows from position 10 on.
TEST(ModelScreenTest, FaultsOfLatePositionsAreNamed) {
  const ModelConfig config = Small(/*rope=*/false);
  const auto table = [](int64_t skipped) {
    return [skipped](ParameterSet* parameters) {
      Parameter* wpe = parameters->Find("wpe.weight");
      const int64_t C = wpe->shape[1];
      for (int64_t row = 1; row <= 10; ++row) std::copy_n(wpe->data, C, wpe->data + row * C);
      std::copy(wpe->data + skipped * C, wpe->data + wpe->elements, wpe->data);
    };
  };
  const auto right = Make(config, SimdKernels(), table(0));
  const auto wrong = Make(config, SimdKernels(), table(1));
  const std::vector<int32_t> tokens = Tokens(2 * 20);
  const std::vector<float> a = FullLogits(*right, tokens, 2), b = FullLogits(*wrong, tokens, 2);
  ASSERT_TRUE(std::equal(a.begin(), a.begin() + 10 * config.vocab_size, b.begin()));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(FindingOf(*right, *right, tokens, 2, dtype), "correct");
    EXPECT_EQ(FindingOf(*right, *wrong, tokens, 2, dtype), "position_offset_one");
  }
}

// A head that is the embedding but for its last two rows, beside the embedding in its place.
TEST(ModelScreenTest, FaultsOfRareColumnsAreNamed) {
  const ModelConfig config = Small(/*rope=*/true);
  const auto with_head = [](int64_t others) {
    return [others](ParameterSet* parameters) {
      const Parameter* embedding = parameters->Find("model.embed_tokens.weight");
      Parameter* head = parameters->Find("lm_head.weight");
      const int64_t C = head->shape[1];
      std::copy_n(embedding->data, head->elements - others * C, head->data);
    };
  };
  const auto right = Make(config, SimdKernels(), with_head(2));
  const auto wrong = Make(config, SimdKernels(), with_head(0));
  const std::vector<int32_t> tokens = Tokens(2 * 20);
  EXPECT_EQ(FindingOf(*right, *right, tokens, 2), "correct");
  EXPECT_EQ(FindingOf(*right, *wrong, tokens, 2), "head_untied");
}

// Without biases a token whose embedding is 0 leaves 0 everywhere: the first sequence knows
// nothing.
TEST(ModelScreenTest, FaultsOfTheSecondSequenceAreNamed) {
  const ModelConfig config = Small(/*rope=*/true);
  const Edit edit = [](ParameterSet* parameters) {
    Parameter* embedding = parameters->Find("model.embed_tokens.weight");
    std::fill_n(embedding->data, embedding->shape[1], 0.0F);
  };
  const auto right = Make(config, SimdKernels(), edit);
  std::vector<int32_t> tokens = Tokens(2 * 20);
  std::fill_n(tokens.begin(), 20, 0);
  EXPECT_EQ(FindingOf(*right, *right, tokens, 2), "correct");
  for (const char* fault : {"gqa_tiled", "rope_pairing", "mask_missing", "scale_missing"}) {
    const Kernels kernels = *PlantedKernels(fault, SimdKernels());
    EXPECT_EQ(FindingOf(*right, *Make(config, kernels, edit), tokens, 2), fault);
  }
  ModelConfig other = config;
  other.norm_eps = 1e-2;
  EXPECT_EQ(FindingOf(*right, *Make(other, SimdKernels(), edit), tokens, 2), "norm_eps_value");
  other = config;
  other.rope_theta = 300;
  EXPECT_EQ(FindingOf(*right, *Make(other, SimdKernels(), edit), tokens, 2), "rope_theta");
  // Together.
  other.norm_eps = 1e-2;
  EXPECT_EQ(FindingOf(*right, *Make(other, SimdKernels(), edit), tokens, 2),
            "norm_eps_value + rope_theta");
}

}  // namespace
}  // namespace heed
