// The long lists of a vocabulary in JSON: read as the tree of the whole text has them, or not at
// all.
#include "text/bpe_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/json.h"
#include "text/tokenizer_json.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(BpeLists, AreCutOutOfTheText) {
  BpeLists lists;
  std::string rest;
  ASSERT_TRUE(CutOutLists(
      R"({"a":[1,{"]":"}"}], "model" : {"type":"BPE","vocab":{ "\u00e9\n\ud83d\ude00" : 0,"b":12},)"
      R"("x":-1.5e3,"merges":["a b c",["\"","\\"]]},"z":null} )",
      &lists, &rest));
  EXPECT_THAT(lists.vocab, ElementsAre(Pair("é\n😀", 0), Pair("b", 12)));
  EXPECT_THAT(lists.merges, ElementsAre(Pair("a", "b c"), Pair("\"", "\\")));
  EXPECT_EQ(rest, R"({"a":[1,{"]":"}"}], "model" : {"type":"BPE","vocab":{},)"
                  R"("x":-1.5e3,"merges":[]},"z":null} )");
}

// Strings are read in words of eight bytes.
TEST(BpeLists, StringsOfEveryLengthEndWhereTheyEnd) {
  for (size_t n = 0; n < 40; ++n) {
    for (const std::string& end : {std::string(), std::string("é"), std::string("▁x")}) {
      const std::string token = std::string(n, 'a') + end;
      const std::string plain = "{\"" + token + "\":7}";
      const std::string tab = "{\"" + token + "\\t" + token + "\":7}";
      BpeLists lists;
      ASSERT_TRUE(ReadVocab(plain, &lists)) << n;
      EXPECT_THAT(lists.vocab, ElementsAre(Pair(token, 7)));
      lists = {};
      ASSERT_TRUE(ReadVocab(tab, &lists)) << n;
      EXPECT_THAT(lists.vocab, ElementsAre(Pair(token + "\t" + token, 7)));
      for (const char* bad : {"\x1f", "\xff", "\xe2\x96"}) {
        EXPECT_FALSE(ReadVocab("{\"" + token + bad + token + "\":7}", &lists)) << n;
      }
    }
  }
}

TEST(BpeLists, WhatIsNotWellFormedIsLeftToOthers) {
  const auto read = [](const std::string& vocab) {
    BpeLists lists;
    return ReadVocab(vocab, &lists);
  };
  EXPECT_TRUE(read(R"({"a":0,"b":999999999})"));
  for (const char* vocab : {"",
                            "{",
                            "[]",
                            R"({"a":0)",
                            R"({"a":0}x)",
                            R"({"a":0,})",
                            R"({"a":-1})",
                            R"({"a":1.5})",
                            R"({"a":01})",
                            R"({"a":1234567890})",
                            R"({"a":null})",
                            R"({a:1})",
                            R"({"a" 1})",
                            R"({"\x":1})",
                            R"({"\u12":1})",
                            R"({"\ud800":1})",
                            R"({"\ud800\u0041":1})",
                            R"({"\udc00":1})",
                            R"({"\u0000":1})",
                            "{\"a\nb\":1}",
                            "{\"\xff\":1}",
                            "{\"\xed\xa0\x80\":1}",
                            R"({"a":1)",
                            R"({"a)",
                            R"({"a\)",
                            R"({"a\u)"}) {
    EXPECT_FALSE(read(vocab)) << vocab;
  }
  BpeLists lists;
  std::string rest;
  for (const char* merges : {R"("a")", R"(["a"])", R"([["a"]])", R"([["a","b","c"]])", R"([" a"])",
                             R"(["a "])", R"([["","b"]])", R"([1])", R"(["a b")"}) {
    EXPECT_FALSE(CutOutLists(std::string(R"({"model":{"vocab":{"a":0},"merges":)") + merges + "}}",
                             &lists, &rest))
        << merges;
    lists = {}, rest = {};
  }
}

// Whatever strings it has to spell: the library's writer writes them, both readers agree.
RC_GTEST_PROP(BpeLists, AgreeWithTheTree, (const std::vector<std::string>& texts, bool ascii)) {
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  for (const std::string& text : texts) {
    std::string token =
        nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    token = nlohmann::json::parse(token).get<std::string>();
    vocab[token] = vocab.size();
    if (!token.empty()) merges.push_back({token, token + "x"});
  }
  const nlohmann::json whole = {{"model", {{"vocab", vocab}, {"merges", merges}}}, {"a", {1, "]"}}};
  BpeLists lists;
  std::string rest;
  const bool zero = vocab.dump().find("\\u0000") != std::string::npos;
  const std::string dumped = whole.dump(texts.size() % 3 - 1, ' ', ascii);
  const bool cut = CutOutLists(dumped, &lists, &rest);
  RC_ASSERT(cut == (!vocab.empty() && !merges.empty() && !zero));
  if (!cut) return;
  nlohmann::json vocab_read = nlohmann::json::object(), merges_read = nlohmann::json::array();
  for (const auto& [token, id] : lists.vocab) vocab_read[std::string(token)] = id;
  for (const auto& [left, right] : lists.merges) merges_read.push_back({left, right});
  RC_ASSERT(vocab_read == vocab);
  RC_ASSERT(merges_read == merges);
  nlohmann::json left = whole;
  left["model"] = {{"vocab", nlohmann::json::object()}, {"merges", nlohmann::json::array()}};
  RC_ASSERT(nlohmann::json::parse(rest) == left);
}

// A key that stands there twice is refused by name, wherever it stands.
TEST(BpeLists, KeysThatComeTwiceAreFound) {
  const char* const kTexts[] = {
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"a":2,"ab":3},"merges":["a b"]}})",
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"vocab":{},"merges":["a b"]}})",
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"model":1})"};
  for (const char* text : kTexts) {
    const auto read = ParseTokenizerJson(text, "F");
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().Message(), HasSubstr("two keys"));
  }
}

}  // namespace
}  // namespace heed
