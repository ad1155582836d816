#include "text/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/shell.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_bin.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Protocol buffers, as much of them as a model needs.
std::string Varint(uint64_t n) {
  std::string out;
  for (; n >= 0x80; n >>= 7) out += static_cast<char>(n | 0x80);
  return out + static_cast<char>(n);
}
std::string Bytes(int tag, const std::string& bytes) {
  return Varint(tag << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Number(int tag, uint64_t n) { return Varint(tag << 3) + Varint(n); }
std::string Float(float value) { return {reinterpret_cast<const char*>(&value), 4}; }
std::string Piece(const std::string& text, float score, int kind = 1) {
  return Bytes(1, Bytes(1, text) + Varint(2 << 3 | 5) + Float(score) + Number(3, kind));
}
std::string Model(const std::string& trainer = "", const std::string& normalizer = "") {
  return Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) + Piece("\u2581", 0) +
         Piece("a", -1) + Piece("b", -2) + Piece("ab", -3) + Bytes(2, Number(3, 2) + trainer) +
         Bytes(3, Bytes(1, "identity") + normalizer);
}

TEST(SentencePieceModel, ReadsPiecesAndSettings) {
  const auto t = ParseSentencePieceModel(Model(), "F");
  ASSERT_TRUE(t) << t.error().Message();
  EXPECT_EQ((*t)->bos(), 1);
  EXPECT_EQ((*t)->eos(), 2);
  // The defaults: a space before the text, no extra spaces.
  EXPECT_THAT(*(*t)->Encode(" ab  xy "), ElementsAre(3, 6, 3, 0));
  const auto plain = ParseSentencePieceModel(Model("", Number(3, 0) + Number(4, 0)), "F");
  EXPECT_THAT(*(*plain)->Encode("ab  "), ElementsAre(6, 3, 3));
  // -1, in ten bytes, stands for none.
  const auto none = ParseSentencePieceModel(Model(Number(41, ~uint64_t{0})), "F");
  EXPECT_EQ((*none)->bos(), std::nullopt);
  const auto characters = ParseSentencePieceModel(Model(Number(3, 4)), "F");
  EXPECT_THAT(*(*characters)->Encode("ab"), ElementsAre(3, 4, 5));
}

// Every prefix of a model is a damaged message, a smaller vocabulary, or one without its settings.
TEST(SentencePieceModel, SurvivesEveryCut) {
  const std::string model = Model();
  for (size_t n = 0; n < model.size(); ++n) {
    const auto t = ParseSentencePieceModel(model.substr(0, n), "F");
    EXPECT_EQ(t ? (*t)->vocab_size() : 7, 7);
  }
}

TEST(TokenizerBin, ReadsLlama2c) {
  const auto piece = [](const std::string& text, float score) {
    const auto size = static_cast<int32_t>(text.size());
    return Float(score) + std::string(reinterpret_cast<const char*>(&size), 4) + text;
  };
  const std::string bin = std::string("\7\0\0\0", 4) + piece("<unk>", 0) + piece("\n<s>\n", 0) +
                          piece("\n</s>\n", 0) + piece(" ", 0) + piece("a", -1) + piece(" a", -2);
  const auto t = ParseTokenizerBin(bin, "F");
  ASSERT_TRUE(t) << t.error().Message();
  EXPECT_EQ((*t)->bos(), 1);
  EXPECT_THAT(*(*t)->Encode("a  aa"), ElementsAre(5, 3, 5, 4));
  EXPECT_EQ((*t)->Decode(std::vector<int32_t>{1, 5, 3, 5, 4}), "a  aa");
}

// One file per attack; each is refused in one line that names it.
TEST(OpenTokenizer, RefusesEveryBadFile) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HEED_SOURCE_DIR "/tests/text/bad")) {
    const std::string path = entry.path().string();
    const auto t = OpenTokenizer(path);
    EXPECT_FALSE(t) << path;
    if (t) continue;
    EXPECT_THAT(t.error().Message(), HasSubstr(path));
    EXPECT_EQ(t.error().Message().find('\n'), std::string::npos) << t.error().Message();
    EXPECT_LT(t.error().Message().size(), 400u) << path;
    ++files;
  }
  EXPECT_GE(files, 50);
}

TEST(OpenTokenizer, FindsItsFiles) {
  const TemporaryFolder folder;
  EXPECT_THAT(OpenTokenizer(folder.path()).error().Message(),
              HasSubstr("a folder without a vocabulary"));
  EXPECT_THAT(OpenTokenizer("gpt2").error().Message(), HasSubstr("nothing is downloaded"));
  WriteText(folder / "vocab.json", R"({"a":0,"b":1,"ab":2})");
  EXPECT_THAT(OpenTokenizer(folder.path()).error().Message(), HasSubstr("no merges beside it"));
  WriteText(folder / "merges.txt", "#version: 0.2\r\na b\r\n\n");
  const auto gpt2 = OpenTokenizer(folder.path());
  ASSERT_TRUE(gpt2) << gpt2.error().Message();
  EXPECT_THAT(*(*gpt2)->Encode("aab"), ElementsAre(0, 2));
  WriteText(folder / "merges.txt", "a b\na c\n");
  EXPECT_THAT(OpenTokenizer(folder.path()).error().Message(),
              testing::AllOf(HasSubstr("merges.txt"), HasSubstr("merge 2 with \"c\"")));
  WriteText(folder / "my-encoder.json", R"({"a":0})");
  WriteText(folder / "my-vocab.bpe", "");
  EXPECT_TRUE(OpenTokenizer(folder / "my-encoder.json"));
  WriteText(folder / "tokenizer.model", Model());
  EXPECT_EQ((*OpenTokenizer(folder.path()))->vocab_size(), 7);
}

}  // namespace
}  // namespace heed
