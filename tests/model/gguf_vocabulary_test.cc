// Vocabularies in GGUF: written and read back without tokenizer.huggingface.json, they cut text as
// before; and files of others, where HEED_DATA names them.
#include "model/gguf_vocabulary.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "support/shell.h"
#include "text/bpe_trainer.h"
#include "text/char_tokenizer.h"
#include "text/scored_pieces.h"
#include "text/tokenizer_bin.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

using testing::HasSubstr;
using Metadata = std::vector<std::pair<std::string, GgufValue>>;

// Texts that a vocabulary may trip over.
const char* const kTexts[] = {"Once upon a time, there was", "  two  spaces ", "tab\tnew\n\nline",
                              "café 漢字 🙂",           "1234 a1b2",      "I'm, we've"};

class GgufVocabularies : public testing::Test {
 protected:
  Result<GgufFile> Written(const Metadata& metadata) {
    const std::string path = folder_ / "v.gguf";
    EXPECT_TRUE(WriteGguf(path, metadata, {}, /*overwrite=*/true));
    return GgufFile::Open(path);
  }
  // Through llama.cpp's lists alone.
  std::unique_ptr<Tokenizer> ThroughLists(const Tokenizer& tokenizer, int64_t rows) {
    Metadata metadata;
    PutGgufVocabulary(&tokenizer, rows, &metadata);
    std::erase_if(metadata, [](const auto& entry) { return entry.first.ends_with(".json"); });
    auto again = GgufVocabulary(*Written(metadata));
    if (!again) throw std::runtime_error(again.error().Message());
    return std::move(*again);
  }
  void ExpectSameIds(const Tokenizer& want, const Tokenizer& got) {
    EXPECT_EQ(got.bos(), want.bos());
    for (const char* text : kTexts) {
      const auto ids = want.Encode(text), theirs = got.Encode(text);
      ASSERT_TRUE(ids && theirs) << text;
      EXPECT_EQ(*ids, *theirs) << text;
      EXPECT_EQ(got.Decode(*theirs), want.Decode(*ids));
    }
  }
  TemporaryFolder folder_;
};

TEST_F(GgufVocabularies, ByteLevelMergesComeBack) {
  const std::string text = "Once upon a time there was a café. Once there were two; we've time.";
  const std::string_view views[] = {text};
  const auto tokenizer = *BpeTokenizer::Create(*TrainBpe(views, 290), "trained");
  ExpectSameIds(*tokenizer, *ThroughLists(*tokenizer, 300));
}

TEST_F(GgufVocabularies, ScoredPiecesComeBackFromGgufAndTokenizerBin) {
  std::vector<ScoredPiece> pieces = {{"<unk>", 0, PieceKind::kUnknown},
                                     {"<s>", 0, PieceKind::kControl},
                                     {"</s>", 0, PieceKind::kControl}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    pieces.push_back({name, 0, PieceKind::kByte});
  }
  float score = 0;
  for (const char* piece : {"▁t", "he", "▁the", "re", "▁time", "on", "ce", "nce", "▁",   "t",
                            "h",  "e",  "r",    "i",  "m",     "o",  "n",  "c",   "▁ti", "me"}) {
    pieces.push_back({piece, score--});
  }
  BpeVocabulary vocabulary = *VocabularyFromScores(pieces, "pieces");
  vocabulary.prefix = BpeVocabulary::Prefix::kText;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  const auto tokenizer = *BpeTokenizer::Create(vocabulary, "pieces");
  ExpectSameIds(*tokenizer, *ThroughLists(*tokenizer, tokenizer->vocab_size()));
  const auto bin = TokenizerBin(*tokenizer);
  ASSERT_TRUE(bin);
  ExpectSameIds(*tokenizer, **ParseTokenizerBin(*bin, "tokenizer.bin"));
  const std::vector<char32_t> letters = {U'a', U'b'};
  EXPECT_FALSE(TokenizerBin(CharTokenizer(letters)));
}

TEST_F(GgufVocabularies, ListsThatDoNotFitAreRefused) {
  const auto refusal = [&](const Metadata& metadata) {
    const auto vocabulary = GgufVocabulary(*Written(metadata));
    EXPECT_FALSE(vocabulary) << "accepted";
    return vocabulary ? "" : vocabulary.error().Message();
  };
  const std::string llama = "llama", gpt2 = "gpt2";
  const std::vector<std::string> two = {"a", "b"};
  const std::pair<std::string, GgufValue> tokens = {"tokenizer.ggml.tokens", two};
  EXPECT_THAT(refusal({}), HasSubstr("tokenizer.ggml.model: found nothing"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", std::string("bert")}}), HasSubstr("\"bert\""));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", llama}}), HasSubstr("tokens: found none"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", llama}, tokens}), HasSubstr("0 scores"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", gpt2},
                       tokens,
                       {"tokenizer.ggml.token_type", std::vector<int64_t>{1}}}),
              HasSubstr("1 kinds"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", gpt2},
                       tokens,
                       {"tokenizer.ggml.token_type", std::vector<int64_t>{1, 7}}}),
              HasSubstr("the kind 7"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", gpt2}, tokens, {"tokenizer.ggml.pre", llama}}),
              HasSubstr("tokenizer.ggml.pre"));
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", gpt2},
                       tokens,
                       {"tokenizer.ggml.merges", std::vector<std::string>{"ab"}}}),
              HasSubstr("two tokens and a space"));
  EXPECT_THAT(
      refusal(
          {{"tokenizer.ggml.model", gpt2}, tokens, {"tokenizer.ggml.eos_token_id", int64_t{2}}}),
      HasSubstr("an id of the vocabulary"));
}

// GGUF's copies of two published vocabularies cut text as the vocabularies' own files do.
TEST_F(GgufVocabularies, PublishedOnesAreThoseOfTheirSources) {
  const char* folder = std::getenv("HEED_DATA");
  if (folder == nullptr) GTEST_SKIP() << "HEED_DATA names no folder with vocabularies";
  const std::string data = std::string(folder) + "/";
  for (const auto& [gguf, source] :
       {std::pair{"ggml-vocab-gpt-2.gguf", "gpt2-encoder.json"},
        std::pair{"ggml-vocab-llama-spm.gguf", "llama2-tokenizer.bin"}}) {
    const auto file = GgufFile::Open(data + gguf);
    ASSERT_TRUE(file) << file.error().Message();
    const auto got = GgufVocabulary(*file), want = OpenTokenizer(data + source);
    ASSERT_TRUE(got) << got.error().Message();
    ASSERT_TRUE(want) << want.error().Message();
    EXPECT_EQ((*got)->vocab_size(), (*want)->vocab_size());
    ExpectSameIds(**want, **got);
  }
}

}  // namespace
}  // namespace heed
