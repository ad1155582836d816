// A model on disk: what is written is read back to the bit, what other programs write is read, and
// what does not fit is refused by name.
#include "model/folder.h"

#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "model/config_json.h"
#include "support/checks.h"
#include "support/shell.h"
#include "tensor/convert.h"
#include "text/byte_tokenizer.h"

namespace heed {
namespace {

using testing::HasSubstr;

// A stored tensor on its way into a file.
struct Stored {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::vector<Stored> TensorsOf(const Gpt& model, DType dtype = DType::kF32) {
  std::vector<Stored> tensors;
  for (const Parameter& p : model.parameters().all()) {
    Stored stored{p.name, dtype, p.shape, std::string(p.elements * SizeOf(dtype), '\0')};
    Encode(dtype, p.data, p.elements, reinterpret_cast<std::byte*>(stored.bytes.data()));
    tensors.push_back(std::move(stored));
  }
  return tensors;
}

void Write(const std::string& path, const std::vector<Stored>& stored) {
  std::vector<TensorToWrite> tensors;
  for (const Stored& s : stored) tensors.push_back({s.name, s.dtype, s.shape, s.bytes.data()});
  ASSERT_TRUE(WriteSafetensors(path, tensors, {}, /*overwrite=*/true));
}

class Folders : public testing::Test {
 protected:
  // A folder with the model's config.json and these tensors.
  void Put(const Gpt& model, const std::vector<Stored>& tensors) {
    WriteText(folder_ / "config.json", ModelConfigJson(model.config()));
    Write(folder_ / "model.safetensors", tensors);
  }
  std::unique_ptr<Gpt> Load() {
    auto loaded = LoadModel(folder_.path(), SimdKernels());
    if (!loaded) ADD_FAILURE() << loaded.error().Message();
    return loaded ? std::move(loaded->model) : nullptr;
  }
  std::string Refusal() {
    const auto loaded = LoadModel(folder_.path(), SimdKernels());
    EXPECT_FALSE(loaded) << "accepted";
    return loaded ? "" : loaded.error().Message();
  }

  std::vector<float> Logits(const Gpt& model) {
    return FullLogits(model, RandomTokens(2 * 7, model.config().vocab_size), 2);
  }

  TemporaryFolder folder_;
  const ModelConfig config_ = Mixes()[0].config;  // GPT-2, tied
  const std::unique_ptr<Gpt> model_ = NoisyModel(config_, SimdKernels());
};

TEST_F(Folders, SavedAndLoadedIsTheSameModelAndTheSameBytes) {
  for (const Mix& mix : Mixes()) {
    SCOPED_TRACE(mix.name);
    const auto model = NoisyModel(mix.config, SimdKernels());
    const std::string first = folder_ / mix.name, second = first + "-again";
    ASSERT_TRUE(SaveModel(first, *model, nullptr, /*overwrite=*/false));
    const auto loaded = LoadModel(first, SimdKernels());
    ASSERT_TRUE(loaded) << loaded.error().Message();
    EXPECT_EQ(loaded->model->config(), mix.config);
    EXPECT_FALSE(loaded->tokenizer);
    EXPECT_TRUE(SameBits(Logits(*model), Logits(*loaded->model)));
    ASSERT_TRUE(SaveModel(second, *loaded->model, nullptr, /*overwrite=*/false));
    for (const char* file : {"/config.json", "/model.safetensors"}) {
      EXPECT_EQ(ReadText(first + file), ReadText(second + file)) << file;
      EXPECT_FALSE(ReadText(first + file).empty()) << file;
    }
    EXPECT_FALSE(SaveModel(second, *model, nullptr, /*overwrite=*/false)) << "not overwritten";
  }
}

// What stands in the file as layers read it stays there; the rest gets memory of its own.
TEST_F(Folders, ReadInPlaceItIsTheSameModel) {
  for (const Mix& mix : Mixes()) {
    SCOPED_TRACE(mix.name);
    const auto model = NoisyModel(mix.config, SimdKernels());
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      const std::string path = folder_ / mix.name + std::string(NameOf(dtype));
      ASSERT_TRUE(SaveModel(path, *model, nullptr, false, {.dtype = dtype, .shard_bytes = 20000}));
      const auto owned = LoadModel(path, SimdKernels());
      const auto in_place = LoadModel(path, SimdKernels(), "", Weights::kInPlace);
      ASSERT_TRUE(in_place) << in_place.error().Message();
      EXPECT_EQ(in_place->report.used, owned->report.used);
      for (const Parameter& p : in_place->model->parameters().all()) {
        EXPECT_EQ(p.data == nullptr, dtype == DType::kF32) << p.name;
      }
      EXPECT_TRUE(SameBits(Logits(*owned->model), Logits(*in_place->model)));
      ASSERT_TRUE(SaveModel(path + "-again", *in_place->model, nullptr, false));
      ASSERT_TRUE(SaveModel(path + "-owned", *owned->model, nullptr, false));
      EXPECT_EQ(ReadText(path + "-again/model.safetensors"),
                ReadText(path + "-owned/model.safetensors"));
    }
  }
}

// A header whose length is no multiple of four leaves numbers at odd places.
TEST_F(Folders, NumbersThatLieBetweenWordsAreCopied) {
  Put(*model_, TensorsOf(*model_));
  std::string bytes = ReadText(folder_ / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes.insert(8 + length, " ");
  ++length;
  std::memcpy(bytes.data(), &length, sizeof(length));
  WriteText(folder_ / "model.safetensors", bytes);
  const auto loaded = LoadModel(folder_.path(), SimdKernels(), "", Weights::kInPlace);
  ASSERT_TRUE(loaded) << loaded.error().Message();
  for (const Parameter& p : loaded->model->parameters().all()) EXPECT_NE(p.data, nullptr);
  EXPECT_TRUE(SameBits(Logits(*model_), Logits(*loaded->model)));
}

TEST_F(Folders, ThePrefixOfOtherProgramsIsKnown) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  for (Stored& s : tensors) s.name = "transformer." + s.name;
  // Their copy of the tied head, and their masks.
  tensors.push_back(tensors.front());
  tensors.back().name = "lm_head.weight";
  tensors.push_back({"transformer.h.0.attn.bias", DType::kU8, {1, 1, 2, 2}, std::string(4, '\1')});
  Put(*model_, tensors);
  const auto loaded = Load();
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(SameBits(Logits(*model_), Logits(*loaded)));
  EXPECT_EQ(loaded->parameters().Find("wte.weight")->file_name, "transformer.wte.weight");
}

TEST_F(Folders, ShardsWithAnIndexAreOneModel) {
  const std::vector<Stored> tensors = TensorsOf(*model_);
  const size_t half = tensors.size() / 2;
  WriteText(folder_ / "config.json", ModelConfigJson(config_));
  Write(folder_ / "model-00001-of-00002.safetensors", {tensors.begin(), tensors.begin() + half});
  Write(folder_ / "model-00002-of-00002.safetensors", {tensors.begin() + half, tensors.end()});
  nlohmann::json index;
  for (size_t i = 0; i < tensors.size(); ++i) {
    index["weight_map"][tensors[i].name] =
        i < half ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  WriteText(folder_ / "model.safetensors.index.json", index.dump());
  const auto loaded = Load();
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(SameBits(Logits(*model_), Logits(*loaded)));

  std::filesystem::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(Refusal(), HasSubstr("model-00002-of-00002.safetensors"));
  index["weight_map"]["wte.weight"] = "../elsewhere.safetensors";
  WriteText(folder_ / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(Refusal(), HasSubstr("../elsewhere.safetensors"));
}

TEST_F(Folders, HalfPrecisionWeightsAreWidened) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Put(*model_, TensorsOf(*model_, dtype));
    const auto loaded = Load();
    ASSERT_TRUE(loaded);
    // Half a unit in the last place: 11 significant bits, or 8.
    const double bound = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
    for (const Parameter& p : model_->parameters().all()) {
      const float* got = loaded->parameters().Find(p.name)->data;
      for (int64_t i = 0; i < p.elements; ++i) {
        // Below 2^-14 the spacing of F16 no longer shrinks.
        ASSERT_NEAR(got[i], p.data[i], bound * std::max(std::abs(p.data[i]), 0x1p-14f)) << p.name;
      }
    }
    EXPECT_FALSE(SameBits(Logits(*model_), Logits(*loaded)));
  }
}

TEST_F(Folders, ATensorThatDoesNotBelongIsRefused) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  tensors.push_back(tensors.back());
  tensors.back().name = "h.2.ln_1.weight";
  Put(*model_, tensors);
  EXPECT_THAT(Refusal(), HasSubstr("h.2.ln_1.weight"));
}

TEST_F(Folders, ATensorThatIsMissingIsRefused) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  const auto at = std::ranges::find(tensors, "h.1.mlp.c_fc.weight", &Stored::name);
  ASSERT_NE(at, tensors.end());
  tensors.erase(at);
  Put(*model_, tensors);
  EXPECT_THAT(Refusal(), HasSubstr("h.1.mlp.c_fc.weight"));
}

TEST_F(Folders, ATensorOfAnotherShapeIsRefused) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  const auto at = std::ranges::find(tensors, "h.1.mlp.c_fc.weight", &Stored::name);
  ASSERT_NE(at, tensors.end());
  std::swap(at->shape[0], at->shape[1]);
  Put(*model_, tensors);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("h.1.mlp.c_fc.weight"), HasSubstr("[84, 21]"),
                               HasSubstr("[21, 84]")));
}

TEST_F(Folders, IntegerWeightsAreRefused) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  const auto at = std::ranges::find(tensors, "ln_f.weight", &Stored::name);
  at->dtype = DType::kI32;
  Put(*model_, tensors);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("ln_f.weight"), HasSubstr("I32")));
}

TEST_F(Folders, TheSameTensorTwiceIsRefused) {
  std::vector<Stored> tensors = TensorsOf(*model_);
  tensors.push_back(tensors.front());
  tensors.back().name = "transformer.wte.weight";
  Put(*model_, tensors);
  EXPECT_THAT(Refusal(), HasSubstr("wte.weight"));
}

TEST_F(Folders, BytesAfterTheLastTensorAreRefused) {
  Put(*model_, TensorsOf(*model_));
  const std::string path = folder_ / "model.safetensors";
  WriteText(path, ReadText(path) + "1234");
  EXPECT_THAT(Refusal(), HasSubstr("model.safetensors"));
  // And bytes that are missing.
  const std::string all = ReadText(path);
  WriteText(path, all.substr(0, all.size() - 8));
  EXPECT_THAT(Refusal(), HasSubstr("model.safetensors"));
}

TEST_F(Folders, AVocabularyLargerThanTheEmbeddingIsRefused) {
  ASSERT_LT(config_.vocab_size, 256);
  Put(*model_, TensorsOf(*model_));
  WriteText(folder_ / "tokenizer.json", ByteTokenizer().Json());
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("tokenizer.json"), HasSubstr("256"), HasSubstr("37")));
}

// Names in order put the head before the embedding; a check that needed the other order let a head
// of other numbers through.
TEST_F(Folders, ATiedHeadThatDiffersIsRefusedInEitherOrder) {
  for (const bool head_first : {false, true}) {
    std::vector<Stored> tensors = TensorsOf(*model_);
    Stored head = tensors.front();
    head.name = "lm_head.weight";
    head.bytes[3] ^= 1;
    tensors.insert(head_first ? tensors.begin() : tensors.end(), head);
    Put(*model_, tensors);
    EXPECT_THAT(Refusal(), HasSubstr("lm_head.weight")) << head_first;
    head.bytes[3] ^= 1;
    std::ranges::find(tensors, "lm_head.weight", &Stored::name)->bytes = head.bytes;
    Put(*model_, tensors);
    EXPECT_TRUE(Load()) << head_first;
  }
}

TEST_F(Folders, WhatIsNoModelIsSaid) {
  EXPECT_THAT(Refusal(), HasSubstr("config.json"));
  WriteText(folder_ / "config.json", ModelConfigJson(config_));
  EXPECT_THAT(Refusal(), HasSubstr("model.safetensors"));
  const auto nowhere = LoadModel(folder_ / "nowhere", SimdKernels());
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().Message(), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace heed
