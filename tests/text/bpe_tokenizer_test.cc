#include "text/bpe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/shell.h"
#include "text/bpe_trainer.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_json.h"

namespace heed {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Prefix = BpeVocabulary::Prefix;

std::unique_ptr<BpeTokenizer> Made(BpeVocabulary vocabulary) {
  auto tokenizer = BpeTokenizer::Create(std::move(vocabulary), "V");
  EXPECT_TRUE(tokenizer) << tokenizer.error().Message();
  return std::move(*tokenizer);
}

const char* const kText =
    "the cat and the dog and the fox don't say that they'd seen the other cat, the 22 dogs said; "
    "\u00e9t\u00e9 \u4e16\u754c \u4e16\u754c\n\n  the end\n";

// Learned from kText, with two tokens added behind the others.
BpeVocabulary Learned(SplitPattern split = SplitPattern::kGpt2) {
  const std::string_view text = kText;
  BpeVocabulary v = *TrainBpe({&text, 1}, 300);
  v.split = split;
  for (const char* added : {"<|end|>", "<|end|>more"}) {
    v.added.push_back({static_cast<int32_t>(v.tokens.size())});
    v.tokens.emplace_back(added);
  }
  return v;
}

// Ids 0 to 2 are unknown, start and end; then pieces with scores.
std::vector<ScoredPiece> SmallPieces() {
  std::vector<ScoredPiece> pieces = {{"<unk>", 0, PieceKind::kUnknown},
                                     {"<s>", 0, PieceKind::kControl},
                                     {"</s>", 0, PieceKind::kControl}};
  float score = 0;
  for (const char* text : {"\u2581", "a", "b", "c", "ab", "bc", "\u2581a", "abc", "\u2581\u2581"}) {
    pieces.push_back({text, score--});
  }
  return pieces;
}
enum : int32_t { kUnknown, kStart, kEnd, kSpace, kA, kB, kC, kAb, kBc, kSpaceA, kAbc, kSpaces };

BpeVocabulary Small(Prefix prefix = Prefix::kNone) {
  BpeVocabulary v = *VocabularyFromScores(SmallPieces(), "V");
  v.prefix = prefix;
  v.bos = kStart;
  v.eos = kEnd;
  return v;
}

std::string AnyText() {
  const auto part = rc::gen::element<std::string>(
      "the", " the", "a", "b", "c", " ", "  ", "\n", "'s", "12", "<|end|>", "<|end", "more", "\xC3",
      "\u00e9", "\u4e16", "\u2581", "\xFF", "\u3002", std::string(1, '\0'));
  std::string text;
  for (const std::string& p : *rc::gen::container<std::vector<std::string>>(part)) text += p;
  return text;
}

TEST(BpeTokenizer, MergesByScoreFromTheLeft) {
  const auto t = Made(Small());
  EXPECT_THAT(*t->Encode("abc"), ElementsAre(kAbc));  // ab before bc
  EXPECT_THAT(*t->Encode("bbc"), ElementsAre(kB, kBc));
  EXPECT_THAT(*t->Encode(" abc"), ElementsAre(kSpace, kAbc));  // ab before " a", then abc
  EXPECT_THAT(*t->Encode(" ac"), ElementsAre(kSpaceA, kC));
  EXPECT_THAT(*t->Encode("   b"), ElementsAre(kSpaces, kSpace, kB));
  EXPECT_THAT(*t->Encode("a\u2581b"), ElementsAre(kA, kSpace, kB));
  EXPECT_THAT(*t->Encode("axyb"), ElementsAre(kA, kUnknown, kB));  // fused
  EXPECT_EQ(t->Decode(Ids{kSpaceA, kAbc}), " aabc");
}

TEST(BpeTokenizer, PutsTheSpaceAndTheStartOnce) {
  const auto t = Made(Small(Prefix::kText));
  EXPECT_THAT(*t->Encode("a b"), ElementsAre(kSpaceA, kSpace, kB));
  EXPECT_THAT(*t->Encode(" a"), ElementsAre(kSpace, kSpaceA));  // its score beats two spaces'
  EXPECT_THAT(*t->Encode(""), ElementsAre());
  EXPECT_THAT(*t->Encode("a", {"F", 3, /*continues=*/true}), ElementsAre(kA));
  EXPECT_THAT(t->WithBos(*t->Encode("a")), ElementsAre(kStart, kSpaceA));
  EXPECT_THAT(t->WithBos({kStart, kA}), ElementsAre(kStart, kA));
  EXPECT_THAT(t->WithBos({}), ElementsAre(kStart));
  // What was put before the text is not part of it.
  EXPECT_EQ(t->Decode(t->WithBos(*t->Encode("a b"))), "a b");
  EXPECT_EQ(t->BytesAfter(kA, kSpaceA), " a");
  EXPECT_EQ(t->BytesAfter(kStart, kSpaceA), "a");
}

TEST(BpeTokenizer, CollapsesSpaces) {
  BpeVocabulary v = Small(Prefix::kText);
  v.collapse_spaces = true;
  const auto t = Made(std::move(v));
  EXPECT_THAT(*t->Encode("  b   c "), ElementsAre(kSpace, kB, kSpace, kC));
  EXPECT_THAT(*t->Encode("   "), ElementsAre());
  EXPECT_THAT(*t->Encode("  c", {"F", 3, /*continues=*/true}), ElementsAre(kSpace, kC));
}

TEST(BpeTokenizer, FallsBackToBytes) {
  std::vector<ScoredPiece> pieces = SmallPieces();
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    pieces.push_back({name, 0, PieceKind::kByte});
  }
  const auto t = Made(*VocabularyFromScores(pieces, "V"));
  const int32_t first = kSpaces + 1;
  EXPECT_THAT(*t->Encode("a\u00e9\xFF"), ElementsAre(kA, first + 0xC3, first + 0xA9, first + 0xFF));
  EXPECT_EQ(t->Decode(*t->Encode("a\u00e9\xFF")), "a\u00e9\xFF");
  // A byte's name is no text.
  EXPECT_EQ(t->Encode("<0x41>")->size(), 6u);
  pieces.pop_back();
  const auto bad = VocabularyFromScores(pieces, "V");
  EXPECT_THAT(BpeTokenizer::Create(*bad, "V").error().Message(),
              HasSubstr("byte fallback without <0xFF>"));
}

TEST(BpeTokenizer, FindsAddedTokensFirst) {
  const auto t = Made(Learned());
  const auto end = static_cast<int32_t>(t->vocab_size()) - 2;
  const Ids the = *t->Encode(" the");
  EXPECT_EQ(*t->Encode("<|end|> the"), (Ids{end, the[0]}));
  EXPECT_EQ(*t->Encode("<|end|>more"), (Ids{end + 1}));  // the longest
  EXPECT_EQ(t->Decode(*t->Encode("a<|end|>b")), "a<|end|>b");
  BpeVocabulary v = Learned();
  v.added[0].lstrip = v.added[0].rstrip = true;
  EXPECT_EQ(*Made(std::move(v))->Encode(" the \n<|end|>\u3000  the"),
            (Ids{the[0], end, Made(Learned())->Encode("the")->at(0)}));
}

TEST(BpeTokenizer, IgnoresMergesWhereToldTo) {
  BpeVocabulary v = Small();
  v.merges.clear();
  EXPECT_EQ(Made(v)->Encode("abc")->size(), 3u);
  v.ignore_merges = true;
  EXPECT_THAT(*Made(v)->Encode("abc"), ElementsAre(kAbc));
}

TEST(BpeTokenizer, SaysWhatItCannotSpell) {
  BpeVocabulary v = Small();
  v.unknown.reset();
  EXPECT_EQ(Made(std::move(v))->Encode("ab\u00e9", {"F"}).error().Message(),
            "F: found character U+00E9 '\u00e9', expected text that the vocabulary can spell; it "
            "has no token for that");
}

TEST(BpeTokenizer, NormalizesToFormC) {
  BpeVocabulary v = Learned(SplitPattern::kQwen2);
  v.nfc = true;
  const auto t = Made(std::move(v));
  EXPECT_EQ(*t->Encode("e\u0301"), *t->Encode("\u00e9"));
  EXPECT_EQ(t->Decode(*t->Encode("e\u0301\xFF")), "e\u0301\xFF");  // no UTF-8: as it is
}

TEST(BpeTokenizer, RefusesWhatDoesNotFit) {
  const auto error = [](auto&& change) {
    BpeVocabulary v = Small();
    change(v);
    const auto made = BpeTokenizer::Create(std::move(v), "V");
    return made ? "" : made.error().Message();
  };
  EXPECT_THAT(error([](auto& v) { v.tokens.clear(); }), HasSubstr("no tokens"));
  EXPECT_THAT(error([](auto& v) { v.tokens[4] = "b"; }), HasSubstr("token \"b\" at 4 and 5"));
  EXPECT_THAT(error([](auto& v) { v.merges[0].result = 99; }), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(error([](auto& v) { v.bos = 99; }), HasSubstr("special id 99"));
  EXPECT_THAT(error([](auto& v) { v.added.push_back({-1}); }), HasSubstr("added token -1"));
  std::vector<ScoredPiece> pieces = SmallPieces();
  pieces[4].score = std::nanf("");
  EXPECT_THAT(VocabularyFromScores(pieces, "V").error().Message(), HasSubstr("of piece 4"));
  pieces = SmallPieces();
  pieces[4].kind = PieceKind::kUnknown;
  EXPECT_THAT(VocabularyFromScores(pieces, "V").error().Message(), HasSubstr("two unknown"));
}

// Bytes come back, cuts change nothing, and tokenizer.json gives the same vocabulary.
RC_GTEST_PROP(BpeTokenizer, AnyBytesRoundTrip, ()) {
  const std::string text = AnyText();
  for (const auto split :
       {SplitPattern::kNone, SplitPattern::kGpt2, SplitPattern::kCl100k, SplitPattern::kQwen2}) {
    const auto t = Made(Learned(split));
    const Ids ids = *t->Encode(text);
    RC_ASSERT(t->Decode(ids) == text);
    RC_ASSERT(*t->Encode(text) == ids);  // from the cache
    const auto read = ParseTokenizerJson(t->Json(), "again");
    RC_ASSERT(read.has_value());
    RC_ASSERT((*read)->Fingerprint() == t->Fingerprint());
    RC_ASSERT(*(*read)->Encode(text) == ids);
  }
}

RC_GTEST_PROP(BpeTokenizer, CutsChangeNothing, ()) {
  const std::string text = AnyText();
  BpeVocabulary collapsing = Small(Prefix::kText);
  collapsing.collapse_spaces = true;
  for (BpeVocabulary v : {Learned(), Small(), Small(Prefix::kText), collapsing}) {
    const auto t = Made(std::move(v));
    const size_t cut = t->CutAt(text, *rc::gen::inRange<size_t>(0, text.size() + 1));
    Ids parts = *t->Encode(text.substr(0, cut));
    const Ids rest = *t->Encode(text.substr(cut), {"F", cut, /*continues=*/cut > 0});
    parts.insert(parts.end(), rest.begin(), rest.end());
    Ids whole = *t->Encode(text);
    // Unknown characters on both sides of a cut do not fuse across it.
    const auto apart = [](Ids* ids) {
      ids->erase(std::unique(ids->begin(), ids->end(),
                             [](int32_t a, int32_t b) { return a == b && a == kUnknown; }),
                 ids->end());
    };
    if (t->vocabulary().unknown) apart(&parts), apart(&whole);
    RC_ASSERT(parts == whole);
  }
}

TEST(BpeTokenizer, SmallOnesSurviveTheirFile) {
  for (const Prefix prefix : {Prefix::kNone, Prefix::kText, Prefix::kEveryPart}) {
    for (const bool collapse : {false, true}) {
      BpeVocabulary v = Small(prefix);
      v.collapse_spaces = collapse;
      v.eos.reset();
      const auto t = Made(std::move(v));
      const auto read = ParseTokenizerJson(t->Json(), "again");
      ASSERT_TRUE(read) << read.error().Message();
      EXPECT_EQ((*read)->Fingerprint(), t->Fingerprint());
      EXPECT_EQ((*read)->bos(), kStart);
      EXPECT_EQ((*read)->eos(), kEnd);  // by its name
      EXPECT_EQ(*(*read)->Encode(" ab  c\u00e9x"), *t->Encode(" ab  c\u00e9x"));
    }
  }
}

TEST(BpeTokenizer, ManyThreadsAtATime) {
  const auto t = Made(Learned());
  const Ids want = *t->Encode(kText);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) wrong[i] += *t->Encode(kText) != want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// One word of a million letters: in quadratic time this would run for an hour.
TEST(BpeTokenizer, LongWordsTakeLinearTime) {
  const auto t = Made(Learned());
  std::string word;
  for (int i = 0; i < 1'000'000; ++i) word += "thecandog"[i * 7 % 9];
  EXPECT_EQ(t->Decode(*t->Encode(word)), word);
}

// Published ids: what the tiktoken package gives for GPT-2. Needs the vocabulary, which is not kept
// here.
TEST(LessonRow01, Gpt2EqualsTiktoken) {
  const char* data = std::getenv("HEED_DATA");
  if (data == nullptr) GTEST_SKIP() << "HEED_DATA names no folder with gpt2-encoder.json";
  const auto t = OpenTokenizer(std::string(data) + "/gpt2-encoder.json");
  ASSERT_TRUE(t) << t.error().Message();
  const auto read = ParseTokenizerJson((*t)->Json(), "again");
  ASSERT_TRUE(read) << read.error().Message();
  EXPECT_EQ((*t)->vocab_size(), 256 + 50'000 + 1);
  const json golden = json::parse(ReadText(HEED_GOLDEN_DIR "/gpt2-bpe.json"));
  ASSERT_GE(golden["cases"].size(), 500u);
  for (const json& entry : golden["cases"]) {
    const std::string text = entry["text"];
    const Ids ids = entry["ids"];
    EXPECT_EQ(*(*t)->Encode(text), ids) << entry["text"];
    EXPECT_EQ(*(*read)->Encode(text), ids) << entry["text"];
    EXPECT_EQ((*t)->Decode(ids), text);
  }
}

// Published ids: what Debian's sentencepiece gives.
TEST(BpeTokenizer, LlamaEqualsSentencePiece) {
  const char* data = std::getenv("HEED_DATA");
  if (data == nullptr) GTEST_SKIP() << "HEED_DATA names no folder with llama2-tokenizer.bin";
  const auto llama = OpenTokenizer(std::string(data) + "/llama2-tokenizer.bin");
  const auto baby = OpenTokenizer(std::string(data) + "/babyllama105.sp.model");
  ASSERT_TRUE(llama) << llama.error().Message();
  ASSERT_TRUE(baby) << baby.error().Message();
  const json golden = json::parse(ReadText(HEED_GOLDEN_DIR "/sentencepiece.json"));
  ASSERT_GE(golden["cases"].size(), 300u);
  for (const json& entry : golden["cases"]) {
    const std::string text = entry["text"];
    EXPECT_EQ(*(*llama)->Encode(text), entry["llama"].get<Ids>()) << entry["text"];
    EXPECT_EQ((*llama)->Decode(entry["llama"].get<Ids>()), text);
    EXPECT_EQ(*(*baby)->Encode(text), entry["baby"].get<Ids>()) << entry["text"];
  }
}

}  // namespace
}  // namespace heed
