// llama2.c's checkpoints: the layout of its export.py, and files that are none.
#include "io/llama2c.h"

#include <gmock/gmock.h>

#include <cstring>

namespace heed {
namespace {

using testing::HasSubstr;

constexpr Llama2cSizes kSizes = {0, 12, 20, 2, 3, 1, 7, 5, true};

// A file of numbers that count up from 0.
std::string FileOf(const Llama2cSizes& sizes) {
  std::string text = Llama2cHeader(sizes);
  float number = 0;
  for (const TensorEntry& entry : Llama2cTensors(sizes)) {
    for (size_t i = 0; i < entry.size; i += sizeof(float), ++number) {
      text.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
  }
  return text;
}

Result<Llama2cFile> Parse(const std::string& text) {
  return Llama2cFile::Parse(std::as_bytes(std::span(text)), "m.bin");
}

std::string Refusal(const std::string& text) {
  const auto file = Parse(text);
  EXPECT_FALSE(file) << "accepted";
  return file ? "" : file.error().Message();
}

void SetInt(std::string* text, size_t index, int32_t value) {
  std::memcpy(text->data() + index * sizeof(value), &value, sizeof(value));
}

// Counted by hand from export.py: 7·12 + 2·12 + 2·144 + 2·48 + 2·48 + 2·144 + 2·12 + 3·2·240 + 12
// + 2·5·2 floats.
TEST(Llama2c, VersionZeroIsSevenSizesAndTheTensorsOfLegacyExport) {
  const std::string text = FileOf(kSizes);
  EXPECT_EQ(text.size(), 28u + 4 * (84 + 24 + 288 + 96 + 96 + 288 + 24 + 1440 + 12 + 20));
  const auto file = Parse(text);
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_EQ(file->sizes(), kSizes);
  const auto begin = [&](const char* name) {
    const TensorEntry* entry = FindEntry(file->tensors(), name);
    return entry == nullptr ? 0 : (entry->begin - 28) / 4;
  };
  EXPECT_EQ(begin("tok_embeddings.weight"), 0u);
  EXPECT_EQ(begin("layers.1.attention_norm.weight"), 96u);
  EXPECT_EQ(begin("layers.0.attention.wk.weight"), 84u + 24 + 288);
  EXPECT_EQ(begin("layers.0.ffn_norm.weight"), 84u + 24 + 288 + 96 + 96 + 288);
  EXPECT_EQ(begin("layers.1.feed_forward.w2.weight"), 84u + 24 + 288 + 96 + 96 + 288 + 24 + 720);
  EXPECT_EQ(begin("freqs_sin"), (text.size() - 28) / 4 - 10);
}

TEST(Llama2c, VersionOneHasAPaddedHeaderAndOtherOrder) {
  Llama2cSizes sizes = kSizes;
  sizes.version = 1;
  sizes.shared_classifier = false;
  const std::string text = FileOf(sizes);
  EXPECT_EQ(text.substr(0, 8), std::string("24ka\1\0\0\0", 8));
  const auto file = Parse(text);
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_EQ(file->sizes(), sizes);
  EXPECT_EQ(file->tensors().front().name, "layers.0.attention_norm.weight");
  EXPECT_EQ(file->tensors().front().begin, 256u);
  EXPECT_EQ(FindEntry(file->tensors(), "tok_embeddings.weight")->begin, 256 + 4 * (24u + 24 + 12));
  EXPECT_EQ(file->tensors().back().name, "output.weight");
  EXPECT_EQ(FindEntry(file->tensors(), "freqs_cos"), nullptr);
}

TEST(Llama2c, ANegativeVocabularyMeansAHeadOfItsOwn) {
  Llama2cSizes sizes = kSizes;
  sizes.shared_classifier = false;
  const std::string text = FileOf(sizes);
  int32_t vocab_size;
  std::memcpy(&vocab_size, text.data() + 20, sizeof(vocab_size));
  EXPECT_EQ(vocab_size, -7);
  EXPECT_EQ(Parse(text)->sizes(), sizes);
}

TEST(Llama2c, WhatIsNoCheckpointIsRefused) {
  const std::string good = FileOf(kSizes);
  EXPECT_THAT(Refusal(""), HasSubstr("0 bytes"));
  EXPECT_THAT(Refusal(good.substr(0, 27)), HasSubstr("a header of 28"));
  EXPECT_THAT(Refusal(good + "1234"), HasSubstr("as its header makes"));
  EXPECT_THAT(Refusal(good.substr(0, good.size() - 4)), HasSubstr("as its header makes"));
  const char* const names[] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                               "n_kv_heads", "vocab_size", "seq_len"};
  for (size_t i = 0; i < 7; ++i) {
    for (const int32_t value : {0, INT32_MIN}) {
      std::string bad = good;
      SetInt(&bad, i, value);
      EXPECT_THAT(Refusal(bad), HasSubstr(names[i])) << value;
    }
    // Sizes whose product wraps around.
    std::string bad = good;
    SetInt(&bad, i, INT32_MAX);
    EXPECT_FALSE(Parse(bad)) << names[i];
  }
  std::string bad = good;
  for (const size_t i : {0, 1, 5, 6}) SetInt(&bad, i, 0x7ffffffe);
  SetInt(&bad, 3, 1);
  SetInt(&bad, 4, 1);
  EXPECT_THAT(Refusal(bad), HasSubstr("bytes"));
  bad = good;
  SetInt(&bad, 3, 5);
  EXPECT_THAT(Refusal(bad), HasSubstr("5 heads"));
  bad = FileOf({1, 12, 20, 2, 3, 1, 7, 5, true});
  SetInt(&bad, 1, 2);
  EXPECT_THAT(Refusal(bad), HasSubstr("version 2"));
}

}  // namespace
}  // namespace heed
