// Models whose weights stay in few bits in memory, from every file that has them so, and from
// files that do not: the widened model is what they are held against.
#include <gmock/gmock.h>

#include "model/folder.h"
#include "model/gguf_model.h"
#include "support/checks.h"
#include "support/shell.h"

namespace heed {
namespace {

constexpr int64_t kB = 3, kT = 11;

// Widths that are whole blocks, and one of the MLP that is not.
std::vector<Mix> BlockMixes() {
  std::vector<Mix> mixes;
  for (const bool tied : {true, false}) {
    ModelConfig c;
    c.n_layer = 2;
    c.n_head = 4;
    c.n_kv_head = 4;
    c.n_embd = 64;
    c.n_inner = 144;
    c.block_size = 80;
    c.vocab_size = 37;
    c.tied = tied;
    EXPECT_TRUE(c.Resolve());
    mixes.push_back({tied ? "gpt2" : "gpt2_untied", c});
    c.n_inner = 96;
    c.n_kv_head = 2;
    c.position = Position::kRope;
    c.norm = NormKind::kRmsNorm;
    c.mlp = MlpKind::kSwiglu;
    c.bias = false;
    EXPECT_TRUE(c.Resolve());
    mixes.push_back({tied ? "llama" : "llama_untied", c});
  }
  return mixes;
}

class SmallWeights : public testing::TestWithParam<Mix> {
 protected:
  const ModelConfig& config() const { return GetParam().config; }

  static std::unique_ptr<Gpt> Load(const std::string& path, Weights weights,
                                   const Kernels& kernels = SimdKernels()) {
    auto loaded = LoadModel(path, kernels, "", weights);
    EXPECT_TRUE(loaded) << loaded.error().Message();
    return loaded ? std::move(loaded->model) : nullptr;
  }
  std::string Saved(BlockType type) {
    const std::string path = folder_ / std::string(NameOf(type)) + ".gguf";
    EXPECT_TRUE(SaveGguf(path, *model_, nullptr, type, /*overwrite=*/true));
    return path;
  }
  std::vector<float> Logits(const Gpt& model, int64_t T = kT) const {
    return FullLogits(model, RandomTokens(kB * T, config().vocab_size), kB);
  }
  int64_t Packed(const Gpt& model, BlockType type) const {
    return std::ranges::count_if(model.parameters().all(), [&](const Parameter& p) {
      return !p.packed.empty() && p.packed.type == type;
    });
  }
  // The matrices of products whose rows are whole blocks.
  int64_t Factors() const {
    return std::ranges::count_if(model_->parameters().all(),
                                 [](const Parameter& p) { return p.factor() && p.K() % 32 == 0; });
  }

  TemporaryFolder folder_;
  const std::unique_ptr<Gpt> model_ = NoisyModel(GetParam().config, SimdKernels());
};

// In float32 a file's own few bits are the widened numbers, to the bit, for few rows and many,
// where they lie and once they are packed.
TEST_P(SmallWeights, OfAFileAreTheWidenedModelInFloat32) {
  for (const BlockType type : {BlockType::kBF16, BlockType::kQ8_0, BlockType::kQ4_0}) {
    const std::string path = Saved(type);
    OnEveryTarget([&] {
      const auto widened = Load(path, Weights::kOwned), small = Load(path, Weights::kInPlace);
      EXPECT_GE(Packed(*small, type), Factors());
      for (const Parameter& p : small->parameters().all()) {
        if (!p.packed.empty()) {
          EXPECT_EQ(p.values, nullptr) << p.name;
        }
      }
      for (const bool packed : {false, true}) {
        if (packed) {
          ASSERT_TRUE(small->parameters().PackWaiting());
        }
        const bool waits = std::ranges::any_of(small->parameters().all(),
                                               [](const Parameter& p) { return p.packed.waits(); });
        EXPECT_EQ(waits, !packed);
        for (const int64_t T : {int64_t{1}, kT, int64_t{70}}) {
          EXPECT_TRUE(SameBits(Logits(*small, T), Logits(*widened, T))) << NameOf(type) << " " << T;
        }
      }
    });
  }
}

// A folder in bfloat16, whose linear layers lie the other way round in GPT-2's.
TEST_P(SmallWeights, OfAFolderInBf16AreTheWidenedModel) {
  const std::string path = folder_ / "bf16";
  ASSERT_TRUE(SaveModel(path, *model_, nullptr, false, {.dtype = DType::kBF16}));
  const auto widened = Load(path, Weights::kOwned), small = Load(path, Weights::kInPlace);
  EXPECT_GE(Packed(*small, BlockType::kBF16), Factors());
  EXPECT_TRUE(SameBits(Logits(*small), Logits(*widened)));
  // In bfloat16 nothing is rounded that is not bfloat16 already but the rows.
  widened->set_arithmetic(Arithmetic::kBf16);
  small->set_arithmetic(Arithmetic::kBf16);
  EXPECT_TRUE(SameBits(Logits(*small), Logits(*widened)));
}

// Made from floats, they are those that a file in that type would have; the embedding is looked up
// in the floats themselves.
TEST_P(SmallWeights, AreMadeFromFloats) {
  ASSERT_TRUE(SaveModel(folder_ / "f32", *model_, nullptr, false));
  for (const Weights weights : {Weights::kBf16, Weights::kQ8_0, Weights::kQ4_0}) {
    const BlockType type = *PackedType(weights);
    const auto small = Load(folder_ / "f32", weights), file = Load(Saved(type), Weights::kInPlace);
    EXPECT_GE(Packed(*small, type), Factors());
    for (size_t i = 0; i < small->parameters().all().size(); ++i) {
      const Parameter& p = small->parameters().all()[i];
      const Parameter& q = file->parameters().all()[i];
      if (p.packed.empty()) continue;
      EXPECT_NE(p.values, nullptr);
      if (q.packed.empty()) continue;
      std::vector<float> x(p.K()), y(q.K());
      for (int64_t j = 0; j < p.N(); ++j) {
        UnpackColumn(p.packed, j, x.data());
        UnpackColumn(q.packed, j, y.data());
        ASSERT_TRUE(SameBits(x, y)) << p.name << " " << j;
      }
    }
  }
}

// The reference kernels and the fast ones round rows alike, but for the last bits of what they
// round: a number near the middle of two steps may go either way, a step being 1/127 of the largest
// of 32, so that logits differ by some of their rounding, which is a few percent at most.
TEST_P(SmallWeights, WholeNumbersAreNearTheWidenedModel) {
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
    const std::string path = Saved(type);
    const std::vector<float> widened = Logits(*Load(path, Weights::kOwned));
    const std::vector<double> want(widened.begin(), widened.end());
    OnEveryTarget([&] {
      for (const Kernels* kernels : {&SimdKernels(), &ReferenceKernels()}) {
        const auto whole = Load(path, Weights::kInPlace, *kernels);
        whole->set_arithmetic(Arithmetic::kInt8);
        const double error = RelativeError(Logits(*whole), want);
        EXPECT_LT(error, 0.04) << kernels->name;
        EXPECT_GT(error, 1e-4) << kernels->name;
      }
    });
  }
}

TEST_P(SmallWeights, CacheAndChunksGiveTheBitsOfTheWholePass) {
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0}) {
    const std::string path = Saved(type);
    OnEveryTarget([&] {
      const auto model = Load(path, Weights::kInPlace);
      ASSERT_TRUE(model->parameters().PackWaiting());
      model->set_arithmetic(Arithmetic::kInt8);
      const std::vector<int32_t> tokens = RandomTokens(kB * 70, config().vocab_size);
      for (const std::vector<int64_t>& pieces :
           {std::vector<int64_t>(70, 1), std::vector<int64_t>{3, 64, 3}}) {
        EXPECT_EQ(CacheError(*model, tokens, kB, pieces), 0) << testing::PrintToString(pieces);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, SmallWeights, testing::ValuesIn(BlockMixes()), MixName);

}  // namespace
}  // namespace heed
