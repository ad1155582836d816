#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"

namespace heed {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DataSetTest : public testing::Test {
 protected:
  DataSetTest() : root_(fs::path(testing::TempDir()) / ("dataset_" + std::to_string(getpid()))) {
    fs::create_directories(root_);
    options_.block_size = 4;
  }
  ~DataSetTest() override { fs::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string ErrorOf(std::unique_ptr<Tokenizer> vocabulary = nullptr) {
    const auto data = OpenData(options_, std::move(vocabulary));
    return data ? "" : data.error().Message();
  }

  fs::path root_;
  DataOptions options_;
};

TEST_F(DataSetTest, CharactersBytesAndFiles) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "caf\xC3\xA9 ";
  options_.sources = {Write("a.txt", text)};
  auto data = OpenData(options_);
  ASSERT_TRUE(data.has_value()) << data.error().Message();
  EXPECT_EQ(data->tokenizer->kind(), "char");
  EXPECT_EQ(data->batches->vocab_size(), 5);
  EXPECT_EQ(data->batches->train_tokens(), 135);
  EXPECT_EQ(data->batches->val_tokens(), 15);
  EXPECT_FALSE(data->batches->loss_floor(1).has_value());
  options_.tokenizer = "byte";
  data = OpenData(options_);
  EXPECT_EQ(data->batches->vocab_size(), 256);
  EXPECT_EQ(data->batches->train_tokens(), 162);

  // A vocabulary from a file, or from the folder of a model.
  Write("tokenizer.json", (*CharTokenizer::FromText("\xC3\xA9 acfxyz"))->Json());
  for (const std::string& path : {root_.string(), (root_ / "tokenizer.json").string()}) {
    options_.tokenizer = path;
    data = OpenData(options_);
    ASSERT_TRUE(data.has_value()) << data.error().Message();
    EXPECT_EQ(data->batches->vocab_size(), 8);
  }
  EXPECT_THAT(ErrorOf(*CharTokenizer::FromText("caf ")), HasSubstr("character U+00E9"));
  options_.tokenizer = (root_ / "a.txt").string();
  EXPECT_THAT(ErrorOf(), HasSubstr("stops being JSON"));
  options_.tokenizer = "chars";
  EXPECT_THAT(ErrorOf(), HasSubstr("tokenizer: found 'chars', expected char, byte"));
}

TEST_F(DataSetTest, SaysHowManyTokensAreMissing) {
  options_.sources = {Write("short.txt", "0123456789")};
  EXPECT_THAT(ErrorOf(), HasSubstr("9 tokens for training and 1 for validation, expected at least "
                                   "block_size + 1 = 5 in each"));
}

TEST_F(DataSetTest, BuiltinTextsStandAlone) {
  EXPECT_THAT(ErrorOf(), HasSubstr("nothing to train on"));
  options_.sources = {"builtin:stories", "a.txt"};
  EXPECT_THAT(ErrorOf(), HasSubstr("a built-in text among others"));
  options_.sources = {"builtin:storys"};
  EXPECT_THAT(ErrorOf(), HasSubstr("did you mean builtin:stories?"));
}

TEST_F(DataSetTest, Adder) {
  options_.sources = {"builtin:adder"};
  EXPECT_THAT(ErrorOf(), HasSubstr("block_size: found 4, expected at least 6"));
  options_.block_size = 6;
  const auto data = OpenData(options_);
  ASSERT_TRUE(data.has_value()) << data.error().Message();
  EXPECT_EQ(data->tokenizer->vocab_size(), 10);
  EXPECT_EQ(data->tokenizer->Decode(std::vector<int32_t>{1, 3, 5}), "135");
  EXPECT_THAT(ErrorOf(*CharTokenizer::FromText("0123456789x")), HasSubstr("ten digits"));
}

TEST_F(DataSetTest, StoriesKnowTheirFloorInCharactersAndBytes) {
  options_.sources = {"builtin:stories"};
  const auto characters = OpenData(options_);
  ASSERT_TRUE(characters.has_value()) << characters.error().Message();
  options_.tokenizer = "byte";
  const auto bytes = OpenData(options_);
  EXPECT_EQ(characters->batches->loss_floor(5)->nats_per_token,
            bytes->batches->loss_floor(5)->nats_per_token);
}

}  // namespace
}  // namespace heed
