// The same model through every format and back, to the bit; and what a format cannot hold.
#include <gmock/gmock.h>

#include "io/gguf.h"
#include "io/llama2c.h"
#include "model/folder.h"
#include "model/gguf_model.h"
#include "model/group_heads.h"
#include "model/llama2c_model.h"
#include "model/names.h"
#include "support/checks.h"
#include "support/shell.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"

namespace heed {
namespace {

using testing::HasSubstr;

ModelConfig LlamaConfig(bool tied) {
  ModelConfig c;
  c.n_layer = 2;
  c.n_head = 6;
  c.n_kv_head = 2;
  c.n_embd = 60;
  c.n_inner = 44;
  c.block_size = 80;
  c.vocab_size = 37;
  c.tied = tied;
  c = AsLlama(c);
  EXPECT_TRUE(c.Resolve());
  return c;
}

void ExpectSameParameters(const Gpt& a, const Gpt& b) {
  ASSERT_EQ(a.parameters().all().size(), b.parameters().all().size());
  for (size_t i = 0; i < a.parameters().all().size(); ++i) {
    const Parameter &p = a.parameters().all()[i], &q = b.parameters().all()[i];
    EXPECT_EQ(p.name, q.name);
    ASSERT_EQ(p.shape, q.shape) << p.name;
    EXPECT_TRUE(SameBits(p.data, q.data, p.elements)) << p.name;
  }
}

void ExpectSameValues(const Gpt& a, const Gpt& b) {
  for (size_t i = 0; i < a.parameters().all().size(); ++i) {
    const Parameter &p = a.parameters().all()[i], &q = b.parameters().all()[i];
    std::vector<float> values(static_cast<size_t>(p.elements));
    // Rows that stay in their file in another order.
    for (int64_t j = 0; q.values == nullptr && j < q.N(); ++j) {
      UnpackColumn(q.packed, j, &values[j * q.K()]);
    }
    const float* got = q.values == nullptr ? values.data() : q.values;
    EXPECT_TRUE(SameBits(p.values, got, p.elements)) << p.name;
  }
}

class Formats : public testing::Test {
 protected:
  LoadedModel Load(const std::string& path) {
    auto loaded = LoadModel(path, SimdKernels());
    EXPECT_TRUE(loaded) << loaded.error().Message();
    return loaded ? std::move(*loaded) : LoadedModel{};
  }
  std::string Refusal(const std::string& path) {
    const auto loaded = LoadModel(path, SimdKernels());
    EXPECT_FALSE(loaded) << "accepted";
    return loaded ? "" : loaded.error().Message();
  }
  TemporaryFolder folder_;
};

// Folder -> GGUF -> folder -> .bin -> folder, with the folder's bytes at the end.
TEST_F(Formats, ARoundTripThroughAllKeepsEveryByte) {
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied);
    const std::string name = folder_ / (tied ? "tied" : "untied");
    const auto model = NoisyModel(LlamaConfig(tied), SimdKernels());
    ASSERT_TRUE(SaveModel(name + "-1", *model, nullptr, false));
    ASSERT_TRUE(
        SaveGguf(name + ".gguf", *Load(name + "-1").model, nullptr, BlockType::kF32, false));
    ASSERT_TRUE(SaveModel(name + "-2", *Load(name + ".gguf").model, nullptr, false));
    for (const int version : {0, 1}) {
      const std::string bin = name + std::to_string(version) + ".bin";
      ASSERT_TRUE(SaveLlama2c(bin, *Load(name + "-2").model, version, false));
      const LoadedModel loaded = Load(bin);
      for (const std::string& path : {bin, name + ".gguf"}) {
        const auto in_place = LoadModel(path, SimdKernels(), "", Weights::kInPlace);
        ASSERT_TRUE(in_place) << in_place.error().Message();
        EXPECT_EQ(in_place->model->parameters().all().front().data, nullptr);
        ExpectSameValues(*model, *in_place->model);
      }
      EXPECT_EQ(loaded.report.unused.size(), version == 0 ? 2u : 0u);  // the tables of angles
      const std::string last = name + "-3-" + std::to_string(version);
      ASSERT_TRUE(SaveModel(last, *loaded.model, nullptr, false));
      EXPECT_EQ(ReadText(last + "/model.safetensors"), ReadText(name + "-1/model.safetensors"));
    }
    EXPECT_EQ(ReadText(name + "-2/model.safetensors"), ReadText(name + "-1/model.safetensors"));
  }
}

// GPT-2's layers stand transposed in GGUF, and q, k, v fused.
TEST_F(Formats, Gpt2GoesThroughGguf) {
  for (const Mix& mix : Mixes()) {
    if (mix.config.family() != Family::kGpt2) continue;
    const auto model = NoisyModel(mix.config, SimdKernels());
    const std::string path = folder_ / (mix.name + ".gguf");
    ASSERT_TRUE(SaveGguf(path, *model, nullptr, BlockType::kF32, false));
    const LoadedModel loaded = Load(path);
    EXPECT_EQ(loaded.model->config(), mix.config);
    ExpectSameParameters(*model, *loaded.model);
    const auto file = GgufFile::Open(path);
    EXPECT_EQ(file->Find("blk.0.attn_qkv.weight")->shape,
              (std::vector<int64_t>{3 * mix.config.n_embd, mix.config.n_embd}));
  }
}

// What the two orders are for: under interleaved pairs (2i, 2i + 1) the written rows must turn as
// the rows in memory do under halves.
TEST_F(Formats, RowsOfQueriesAndKeysAreInterleavedHeadByHead) {
  ModelConfig c = LlamaConfig(true);
  const auto model = *Gpt::Create(c, SimdKernels());
  for (Parameter& p : model->parameters().all()) {
    for (int64_t i = 0; i < p.elements; ++i) p.data[i] = float(i / p.shape.back());  // the row
  }
  const std::string path = folder_ / "m.gguf";
  ASSERT_TRUE(SaveGguf(path, *model, nullptr, BlockType::kF32, false));
  const auto file = GgufFile::Open(path);
  const int64_t C = c.n_embd, D = c.head_dim;
  for (const auto& [name, heads] :
       {std::pair<const char*, int64_t>{"blk.1.attn_q.weight", 6}, {"blk.1.attn_k.weight", 2}}) {
    const std::vector<float> rows = file->Floats(*file->Find(name));
    ASSERT_EQ(static_cast<int64_t>(rows.size()), heads * D * C);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < D / 2; ++i) {
        EXPECT_EQ(rows[(h * D + 2 * i) * C], float(h * D + i)) << name;
        EXPECT_EQ(rows[(h * D + 2 * i + 1) * C], float(h * D + D / 2 + i)) << name;
      }
    }
  }
  const std::vector<float> values = file->Floats(*file->Find("blk.1.attn_v.weight"));
  for (int64_t r = 0; r < 2 * D; ++r) EXPECT_EQ(values[r * C], float(r));
}

TEST_F(Formats, MixesWithoutANameInGgufAreRefusedInOneSentence) {
  for (const Mix& mix : Mixes()) {
    ModelConfig biased = mix.config;
    biased.bias = true;
    if (biased.family() != Family::kHeed || mix.config.family() != Family::kHeed) continue;
    const auto model = NoisyModel(mix.config, SimdKernels());
    const Status status =
        SaveGguf(folder_ / "m.gguf", *model, nullptr, BlockType::kF32, /*overwrite=*/true);
    ASSERT_FALSE(status) << mix.name;
    EXPECT_THAT(status.error().Message(), HasSubstr("a mix that no architecture has"));
    EXPECT_FALSE(SaveLlama2c(folder_ / "m.bin", *model, 0, true)) << mix.name;
  }
}

// nanoGPT trains GPT-2 without biases; GGUF's has them.
TEST_F(Formats, BiasesThatAreLeftOutBecomeZerosInGguf) {
  ModelConfig config;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_embd = 24;
  config.block_size = 8;
  config.vocab_size = 7;
  config.bias = false;
  const auto model = NoisyModel(config, SimdKernels());
  ASSERT_TRUE(SaveGguf(folder_ / "m.gguf", *model, nullptr, BlockType::kF32, /*overwrite=*/true));
  const auto loaded = Load(folder_ / "m.gguf");
  EXPECT_TRUE(loaded.model->config().bias);
  const std::vector<int32_t> tokens = {1, 5, 0, 2, 4, 3};
  EXPECT_EQ(FullLogits(*loaded.model, tokens, 2), FullLogits(*model, tokens, 2));
}

TEST_F(Formats, WhatTheBinFormatTakesForGrantedIsRefused) {
  const auto refusal = [&](const std::function<void(ModelConfig*)>& change) {
    ModelConfig c = LlamaConfig(true);
    change(&c);
    const auto model = *Gpt::Create(c, SimdKernels());
    const Status status = SaveLlama2c(folder_ / "m.bin", *model, 0, false);
    EXPECT_FALSE(status);
    return status ? "" : status.error().Message();
  };
  EXPECT_THAT(refusal([](auto* c) { c->rope_theta = 500000; }), HasSubstr("rope_theta 500000"));
  EXPECT_THAT(refusal([](auto* c) { c->norm_eps = 1e-6; }), HasSubstr("norm_eps 1e-06"));
  EXPECT_THAT(refusal([](auto* c) { c->head_dim = c->rotary_dim = 8; }), HasSubstr("head_dim 8"));
  EXPECT_THAT(refusal([](auto* c) { c->sliding_window = 4; }), HasSubstr("window"));
  EXPECT_THAT(refusal([](auto* c) { c->attention_bias = AttentionBias::kQkv; }),
              HasSubstr("biases"));
  EXPECT_THAT(refusal([](auto* c) {
                c->rope_scaling = {RopeStretch::kLinear, 2};
              }),
              HasSubstr("stretched"));
}

TEST_F(Formats, FewBitsAreWidenedToWhatTheBlocksSay) {
  ModelConfig c = LlamaConfig(true);
  c.n_embd = 64;
  c.n_head = c.n_kv_head = 4;
  c.head_dim = c.rotary_dim = 0;
  const auto model = NoisyModel(c, SimdKernels());
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0, BlockType::kBF16}) {
    const std::string path = folder_ / (std::string(NameOf(type)) + ".gguf");
    ASSERT_TRUE(SaveGguf(path, *model, nullptr, type, false));
    const LoadedModel loaded = Load(path);
    const auto file = GgufFile::Open(path);
    // A row of 44 is no whole number of blocks, but whole numbers of bf16.
    EXPECT_EQ(file->Find("blk.0.ffn_down.weight")->type,
              type == BlockType::kBF16 ? type : BlockType::kF32);
    EXPECT_EQ(file->Find("blk.0.ffn_up.weight")->type, type);
    EXPECT_EQ(file->Find("output_norm.weight")->type, BlockType::kF32);
    const Parameter& want = *model->parameters().Find("model.layers.0.mlp.up_proj.weight");
    const Parameter& got = *loaded.model->parameters().Find(want.name);
    EXPECT_EQ(std::vector<float>(got.data, got.data + got.elements),
              file->Floats(*file->Find("blk.0.ffn_up.weight")));
    double error = 0, size = 0;
    for (int64_t i = 0; i < want.elements; ++i) {
      error += std::pow(got.data[i] - want.data[i], 2);
      size += std::pow(want.data[i], 2);
    }
    // A uniform error of a step: of 2·largest/254, 2·largest/16, and 2^-9 of each number.
    EXPECT_LT(std::sqrt(error / size), type == BlockType::kQ4_0 ? 0.12 : 0.008);
    EXPECT_GT(error, 0);
  }
}

TEST_F(Formats, TheVocabularyComesBackFromGguf) {
  ModelConfig c = Mixes()[0].config;
  const std::vector<char32_t> characters = {U'\n', U' ', U'a', U'é', U'漢'};
  const CharTokenizer letters(characters);
  const auto model = NoisyModel(c, SimdKernels());
  ASSERT_TRUE(SaveGguf(folder_ / "m.gguf", *model, &letters, BlockType::kF32, false));
  const LoadedModel loaded = Load(folder_ / "m.gguf");
  ASSERT_TRUE(loaded.tokenizer);
  EXPECT_EQ((*loaded.tokenizer)->Fingerprint(), letters.Fingerprint());
  std::vector<std::string> tokens;
  ASSERT_TRUE(GgufFile::Open(folder_ / "m.gguf")->Get("tokenizer.ggml.tokens", &tokens));
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), c.vocab_size);
  EXPECT_EQ(tokens[1], "Ġ");
  EXPECT_EQ(tokens[3], "Ã©");
}

TEST_F(Formats, MisfitsOfAFileAreAllNamed) {
  const auto model = NoisyModel(LlamaConfig(true), SimdKernels());
  const std::string path = folder_ / "m.gguf";
  ASSERT_TRUE(SaveGguf(path, *model, nullptr, BlockType::kF32, false));
  const auto file = GgufFile::Open(path);
  const std::map<std::string, GgufValue> kept = file->Metadata();
  const std::vector<std::pair<std::string, GgufValue>> metadata(kept.begin(), kept.end());
  std::vector<GgufTensorToWrite> tensors;
  for (const GgufTensor& tensor : file->tensors()) {
    if (tensor.name == "blk.1.ffn_up.weight") continue;
    tensors.push_back(
        {tensor.name, tensor.type, tensor.shape, [&] { return file->Floats(tensor); }});
    if (tensor.name == "blk.0.attn_k.weight")
      std::swap(tensors.back().shape[0], tensors.back().shape[1]);
  }
  tensors.push_back(
      {"blk.0.extra.weight", BlockType::kF32, {1}, [] { return std::vector<float>{1}; }});
  const std::string bad = folder_ / "bad.gguf";
  ASSERT_TRUE(WriteGguf(bad, metadata, tensors, false));
  const std::string message = Refusal(bad);
  EXPECT_THAT(message, HasSubstr("blk.0.attn_k.weight of shape [60, 20] in place of [20, 60]"));
  EXPECT_THAT(message, HasSubstr("blk.0.extra.weight, a tensor that the model does not have"));
  EXPECT_THAT(message, HasSubstr("no tensor model.layers.1.mlp.up_proj.weight of shape [44, 60]"));
}

TEST_F(Formats, NamesWithAndWithoutWrappersAreKnown) {
  const auto model = NoisyModel(LlamaConfig(false), SimdKernels());
  for (const std::string prefix : {"", "_orig_mod.model.", "module.model."}) {
    const std::string path = folder_ / ("prefix" + prefix);
    ASSERT_TRUE(SaveModel(path, *model, nullptr, false));
    std::vector<TensorToWrite> tensors;
    for (const Parameter& p : model->parameters().all()) {
      const std::string core = p.name.starts_with("model.") ? p.name.substr(6) : p.name;
      tensors.push_back({prefix + core, DType::kF32, p.shape, p.data});
    }
    ASSERT_TRUE(WriteSafetensors(path + "/model.safetensors", tensors, {}, true));
    ExpectSameParameters(*model, *Load(path).model);
  }
}

// nanoGPT's and minGPT's files: GPT-2's names, and torch.nn.Linear's layout.
TEST_F(Formats, Gpt2LayersOfTorchLinearAreTransposed) {
  const auto model = NoisyModel(Mixes()[0].config, SimdKernels());
  ASSERT_TRUE(SaveModel(folder_ / "nano", *model, nullptr, false));
  std::vector<std::vector<float>> kept;
  std::vector<TensorToWrite> tensors;
  for (const Parameter& p : model->parameters().all()) {
    kept.emplace_back(p.elements);
    ToFileOrder({.out_in = true}, model->config(), p, p.data, kept.back().data());
    tensors.push_back(
        {"transformer." + p.name, DType::kF32, ShapeIn({.out_in = true}, p), kept.back().data()});
  }
  ASSERT_TRUE(WriteSafetensors(folder_ / "nano/model.safetensors", tensors, {}, true));
  ExpectSameParameters(*model, *Load(folder_ / "nano").model);
}

TEST_F(Formats, ShardsAreWrittenAndRead) {
  const auto model = NoisyModel(LlamaConfig(false), SimdKernels());
  const std::string path = folder_ / "shards";
  ASSERT_TRUE(SaveModel(path, *model, nullptr, false, {.shard_bytes = 60'000}));
  EXPECT_FALSE(std::filesystem::exists(path + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(path + "/model-00002-of-00003.safetensors"));
  ExpectSameParameters(*model, *Load(path).model);
  EXPECT_FALSE(SaveModel(path, *model, nullptr, false));
  // Written anew as one file, no index may lead to the old ones.
  ASSERT_TRUE(SaveModel(path, *model, nullptr, true));
  EXPECT_FALSE(std::filesystem::exists(path + "/model.safetensors.index.json"));
}

TEST_F(Formats, HalfPrecisionComesBackAsItWas) {
  const auto model = NoisyModel(LlamaConfig(true), SimdKernels());
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::string name = folder_ / std::string(NameOf(dtype));
    ASSERT_TRUE(SaveModel(name + "-1", *model, nullptr, false, {.dtype = dtype}));
    const LoadedModel first = Load(name + "-1");
    const BlockType type = dtype == DType::kF16 ? BlockType::kF16 : BlockType::kBF16;
    EXPECT_EQ(first.report.type, type);
    ASSERT_TRUE(SaveGguf(name + ".gguf", *first.model, nullptr, type, false));
    const LoadedModel second = Load(name + ".gguf");
    EXPECT_EQ(second.report.type, type);
    ASSERT_TRUE(SaveModel(name + "-2", *second.model, nullptr, false, {.dtype = dtype}));
    EXPECT_EQ(ReadText(name + "-1/model.safetensors"), ReadText(name + "-2/model.safetensors"));
  }
}

// Heads that are equal inside each group make the same function, so pooling must not move a logit
// beyond rounding; heads that are not do.
TEST(LessonRow28, TiedHeadsKeepTheFunction) {
  for (const Mix& mix : Mixes()) {
    if (mix.config.n_kv_head < 4 && mix.config.n_head != mix.config.n_kv_head) continue;
    SCOPED_TRACE(mix.name);
    ModelConfig few = mix.config;
    few.n_kv_head = 1;
    const auto grouped = NoisyModel(few, SimdKernels());
    ModelConfig many = mix.config;
    const auto model = NoisyModel(many, SimdKernels(), 7);
    // The model's key and value heads all become the grouped model's one.
    const int64_t D = many.head_dim, Hkv = many.n_kv_head, q = many.n_head * D;
    for (size_t i = 0; i < model->parameters().all().size(); ++i) {
      Parameter& p = model->parameters().all()[i];
      const Parameter& g = grouped->parameters().all()[i];
      if (p.shape == g.shape) {
        std::copy_n(g.data, g.elements, p.data);
        continue;
      }
      const int64_t width = p.shape.back(), from_width = g.shape.back();
      for (int64_t at = 0; at < p.elements; ++at) {
        const int64_t row = at / width, column = at % width;
        const int64_t k = column - q;
        const int64_t from = column < q    ? column
                             : k < Hkv * D ? q + k % D
                                           : q + D + (k - Hkv * D) % D;
        p.data[at] = g.data[row * from_width + from];
      }
    }
    const std::vector<int32_t> tokens = RandomTokens(2 * 13, many.vocab_size);
    const std::vector<float> want = FullLogits(*model, tokens, 2);
    EXPECT_LE(RelativeError(FullLogits(*grouped, tokens, 2), want), 1e-6);
    for (const HeadPooling pooling : {HeadPooling::kMean, HeadPooling::kFirst}) {
      const auto pooled = GroupHeads(*model, 1, pooling, 1);
      ASSERT_TRUE(pooled);
      EXPECT_LE(RelativeError(FullLogits(**pooled, tokens, 2), want), 1e-6);
    }
    EXPECT_GT(RelativeError(FullLogits(**GroupHeads(*model, 1, HeadPooling::kRandom, 1), tokens, 2),
                            want),
              1e-2);
  }
}

TEST(LessonRow28, TheMeanIsOfHeadsAndNotOfNeighbours) {
  ModelConfig c = LlamaConfig(true);
  c.n_kv_head = 6;
  const auto model = NoisyModel(c, SimdKernels());
  const auto grouped = *GroupHeads(*model, 3, HeadPooling::kMean, 1);
  const Parameter& k = *model->parameters().Find("model.layers.1.self_attn.k_proj.weight");
  const Parameter& pooled = *grouped->parameters().Find(k.name);
  const int64_t head = c.head_dim * c.n_embd;
  for (int64_t i = 0; i < head; ++i) {
    EXPECT_FLOAT_EQ(pooled.data[2 * head + i], (k.data[4 * head + i] + k.data[5 * head + i]) / 2);
  }
  EXPECT_FALSE(GroupHeads(*model, 4, HeadPooling::kMean, 1));
}

// Of GPT-2's fused tensors, whose columns are 6 heads of queries, of keys and of values.
TEST(LessonRow28, TheMeanOfFusedHeadsByHand) {
  ModelConfig c = Mixes()[0].config;
  c.n_head = c.n_kv_head = 6;
  c.head_dim = 4;
  c.n_embd = 24;
  const auto model = NoisyModel(c, SimdKernels());
  const auto mean = *GroupHeads(*model, 2, HeadPooling::kMean, 1);
  const auto first = *GroupHeads(*model, 2, HeadPooling::kFirst, 1);
  for (const char* name : {"h.0.attn.c_attn.weight", "h.1.attn.c_attn.bias"}) {
    const Parameter& from = *model->parameters().Find(name);
    const Parameter& to = *mean->parameters().Find(name);
    const Parameter& one = *first->parameters().Find(name);
    ASSERT_EQ(from.shape.back(), 72);
    ASSERT_EQ(to.shape.back(), 40);
    for (int64_t row = 0; row < from.elements / 72; ++row) {
      const float* x = from.data + row * 72;
      for (int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(to.data[row * 40 + d], x[d]);
        // The second key head stands for the heads 3, 4 and 5, the first value head for 0, 1 and 2.
        EXPECT_FLOAT_EQ(to.data[row * 40 + 28 + d],
                        (double{x[36 + d]} + x[40 + d] + x[44 + d]) / 3);
        EXPECT_FLOAT_EQ(to.data[row * 40 + 32 + d],
                        (double{x[48 + d]} + x[52 + d] + x[56 + d]) / 3);
        EXPECT_EQ(one.data[row * 40 + 28 + d], x[36 + d]);
      }
    }
  }
}

}  // namespace
}  // namespace heed
