// Hugging Face's Llama shapes against logits that tests/golden/hf_shapes.py computed in float64
// with plain PyTorch: stretched rotary angles, sliding windows, biases, wide heads, tied heads.
#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "model/config_json.h"
#include "model/folder.h"
#include "model/gguf_model.h"
#include "support/checks.h"
#include "support/shell.h"

namespace heed {
namespace {

using testing::HasSubstr;

class HfShape : public testing::TestWithParam<std::string> {
 protected:
  HfShape() : golden_(Golden::Load("hf-" + GetParam())) {
    WriteText(folder_ / "config.json", golden_.Text("config"));
    std::vector<TensorToWrite> tensors;
    for (const TensorEntry& entry : golden_.file.tensors()) {
      if (entry.name == "tokens" || entry.name == "logits") continue;
      tensors.push_back({entry.name, entry.dtype, entry.shape, golden_.file.Bytes(entry).data()});
    }
    EXPECT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors, {}, false));
  }

  std::unique_ptr<Gpt> Load(const std::string& path, const Kernels& kernels = SimdKernels()) {
    auto loaded = LoadModel(path, kernels);
    if (!loaded) ADD_FAILURE() << loaded.error().Message();
    return loaded ? std::move(loaded->model) : nullptr;
  }
  double Error(const Gpt& model) {
    return RelativeError(FullLogits(model, golden_.Tokens("tokens"), 2), golden_.Doubles("logits"));
  }

  Golden golden_;
  TemporaryFolder folder_;
};

TEST_P(HfShape, LogitsAreThoseOfPyTorch) {
  for (const Kernels* kernels : {&ReferenceKernels(), &SimdKernels()}) {
    const auto model = Load(folder_.path(), *kernels);
    ASSERT_TRUE(model);
    EXPECT_LE(Error(*model), kForwardBound) << kernels->name;
    EXPECT_LE(CacheError(*model, golden_.Tokens("tokens"), 2, {3, 1, 4, 23}), 1e-5);
  }
}

// A case proves nothing whose feature could be left out.
TEST_P(HfShape, TheFeatureMatters) {
  const auto model = Load(folder_.path());
  ASSERT_TRUE(model);
  ModelConfig plain = model->config();
  plain.rope_scaling = {};
  plain.sliding_window = 0;
  const auto other = *Gpt::Create(plain, SimdKernels());
  for (size_t i = 0; i < other->parameters().all().size(); ++i) {
    Parameter& p = other->parameters().all()[i];
    std::copy_n(model->parameters().all()[i].data, p.elements, p.data);
    if (plain.attention_bias != AttentionBias::kNone && p.name.ends_with("_proj.bias")) {
      std::fill_n(p.data, p.elements, 0.0f);
    }
  }
  EXPECT_GT(Error(*other), 1e-2);
}

TEST_P(HfShape, ConfigAndTensorsAreWrittenBack) {
  const auto model = Load(folder_.path());
  ASSERT_TRUE(model);
  const std::string again = folder_ / "again";
  ASSERT_TRUE(SaveModel(again, *model, nullptr, false));
  const nlohmann::json want = nlohmann::json::parse(golden_.Text("config"));
  const nlohmann::json got = nlohmann::json::parse(ReadText(again + "/config.json"));
  for (const auto& [key, value] : want.items()) {
    if (key == "rope_scaling") {
      for (const auto& [name, number] : value.items()) EXPECT_EQ(got[key][name], number) << name;
    } else if (key != "sliding_window" || model->config().sliding_window > 0) {
      EXPECT_EQ(got.value(key, nlohmann::json()), value) << key;
    }
  }
  const auto loaded = Load(again);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->config(), model->config());
  EXPECT_LE(Error(*loaded), kForwardBound);
}

TEST_P(HfShape, GgufKeepsTheFunctionOrRefuses) {
  const auto model = Load(folder_.path());
  ASSERT_TRUE(model);
  const std::string path = folder_ / "m.gguf";
  const Status saved = SaveGguf(path, *model, nullptr, BlockType::kF32, false);
  if (GetParam() == "mistral") {
    ASSERT_FALSE(saved);
    EXPECT_THAT(saved.error().Message(), HasSubstr("a sliding window"));
    return;
  }
  ASSERT_TRUE(saved) << saved.error().Message();
  const auto loaded = Load(path);
  ASSERT_TRUE(loaded);
  EXPECT_LE(Error(*loaded), kForwardBound);
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const Parameter &a = model->parameters().all()[i], &b = loaded->parameters().all()[i];
    EXPECT_TRUE(a.name == b.name && SameBits(a.data, b.data, a.elements)) << a.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, HfShape,
                         testing::Values("linear", "llama3", "yarn", "attention_bias", "mistral",
                                         "qwen2"),
                         [](const auto& shape) { return shape.param; });

}  // namespace
}  // namespace heed
