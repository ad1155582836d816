#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

using nlohmann::json;
using std::string_literals::operator""s;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<CharTokenizer> Characters(std::string_view text) {
  auto tokenizer = CharTokenizer::FromText(text);
  EXPECT_TRUE(tokenizer.has_value());
  return std::move(*tokenizer);
}

std::string ErrorOf(const std::string& text) {
  const auto parsed = ParseTokenizerJson(text, "F");
  return parsed ? "" : parsed.error().Message();
}

rc::Gen<char32_t> ScalarValue() {
  return rc::gen::map(rc::gen::inRange<uint32_t>(0, 0x110000 - 0x800),
                      [](uint32_t n) { return static_cast<char32_t>(n < 0xD800 ? n : n + 0x800); });
}

TEST(CharTokenizer, IdsFollowTheCharactersNumbers) {
  const auto tokenizer = Characters("hello\n\xC3\xA9 \xE4\xBA\x8C");
  EXPECT_EQ(tokenizer->vocab_size(), 8);  // \n, space, e, h, l, o, é, 二
  EXPECT_THAT(*tokenizer->Encode("\n ehlo\xC3\xA9\xE4\xBA\x8C"),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(tokenizer->TokenBytes(7), "\xE4\xBA\x8C");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3, 6, 99, -1, 5}), "h\xC3\xA9o");
  EXPECT_FALSE(tokenizer->bos().has_value());
}

TEST(CharTokenizer, NamesTheStranger) {
  const auto tokenizer = Characters("abcdef xyz.\n");
  const auto ids = tokenizer->Encode("abc\xC3\xA9");
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().kind, ErrorKind::kRequest);
  EXPECT_EQ(ids.error().Message(),
            "text: found character U+00E9 '\xC3\xA9' at byte 3, expected characters of the "
            "vocabulary; it holds 12 characters: U+000A U+0020 . a-f x-z");
  const auto control = tokenizer->Encode("a\tb", {"prompt", 100});
  EXPECT_THAT(control.error().Message(), HasSubstr("prompt: found character U+0009 at byte 101"));
}

TEST(CharTokenizer, RefusesBrokenUtf8WithItsPlace) {
  const auto tokenizer = Characters("abc");
  const auto ids = tokenizer->Encode("ab\xFF", {"file.txt", 1000});
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().kind, ErrorKind::kFormat);
  EXPECT_THAT(ids.error().Message(), HasSubstr("file.txt: found byte 0xFF at offset 1002"));
  EXPECT_FALSE(CharTokenizer::FromText("a\xC3").has_value());
}

RC_GTEST_PROP(CharTokenizer, AnyTextRoundTrips, ()) {
  const auto characters =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<char32_t>>(ScalarValue()));
  std::string text;
  for (char32_t c : characters) AppendUtf8(c, &text);
  const auto tokenizer = Characters(text);
  const auto ids = tokenizer->Encode(text);
  RC_ASSERT(ids.has_value());
  RC_ASSERT(ids->size() == characters.size());
  RC_ASSERT(tokenizer->Decode(*ids) == text);
  // Cuts change nothing.
  const size_t cut = tokenizer->CutAt(text, *rc::gen::inRange<size_t>(0, text.size() + 1));
  std::vector<int32_t> parts = *tokenizer->Encode(text.substr(0, cut));
  const std::vector<int32_t> rest = *tokenizer->Encode(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  RC_ASSERT(parts == *ids);
  // The file gives the same vocabulary.
  const auto read = ParseTokenizerJson(tokenizer->Json(), "F");
  RC_ASSERT(read.has_value());
  RC_ASSERT((*read)->kind() == "char");
  RC_ASSERT((*read)->Fingerprint() == tokenizer->Fingerprint());
  RC_ASSERT(*(*read)->Encode(text) == *ids);
}

RC_GTEST_PROP(ByteTokenizer, AnyBytesRoundTrip, (const std::vector<uint8_t>& raw)) {
  const std::string bytes(raw.begin(), raw.end());
  const ByteTokenizer tokenizer;
  const auto ids = *tokenizer.Encode(bytes);
  RC_ASSERT(ids == std::vector<int32_t>(raw.begin(), raw.end()));
  RC_ASSERT(tokenizer.Decode(ids) == bytes);
}

// GPT-2's table: space is U+0120, newline U+010A, NUL U+0100, soft hyphen U+0143.
TEST(ByteTokenizer, SpellsBytesAsGpt2Does) {
  EXPECT_EQ(ByteSymbol(' '), 0x120u);
  EXPECT_EQ(ByteSymbol('\n'), 0x10Au);
  EXPECT_EQ(ByteSymbol(0), 0x100u);
  EXPECT_EQ(ByteSymbol(0xAD), 0x143u);
  EXPECT_EQ(ByteSymbol('!'), U'!');
  EXPECT_EQ(ByteSymbol(0xFF), 0xFFu);
  const ByteTokenizer tokenizer;
  const json file = json::parse(tokenizer.Json());
  EXPECT_EQ(file["model"]["vocab"].size(), 256u);
  EXPECT_EQ(file["model"]["vocab"]["\xC4\xA0"], 32);
  EXPECT_EQ(file["pre_tokenizer"]["type"], "ByteLevel");
  const auto read = ParseTokenizerJson(tokenizer.Json(), "F");
  ASSERT_TRUE(read.has_value()) << read.error().Message();
  EXPECT_EQ((*read)->kind(), "byte");
  EXPECT_EQ((*read)->Fingerprint(), tokenizer.Fingerprint());
}

// FNV-1a over eight length bytes (1, 0, ..) and 'a', then eight bytes 0xFF for "no bos", computed
// with Python's integers.
TEST(Tokenizer, FingerprintIsFnv1a) {
  EXPECT_EQ(Characters("a")->Fingerprint(), 0x28849020C2BBF017u);
}

TEST(Tokenizer, FingerprintTellsVocabulariesApart) {
  const std::vector<char32_t> ab = {U'a', U'b'}, ba = {U'b', U'a'};
  EXPECT_NE(CharTokenizer(ab).Fingerprint(), CharTokenizer(ba).Fingerprint());
  EXPECT_NE(Characters("ab")->Fingerprint(), Characters("abc")->Fingerprint());
  EXPECT_EQ(Characters("abba")->Fingerprint(), Characters("ab")->Fingerprint());
}

TEST(TokenizerJson, KeepsTheOrderOfAForeignVocabulary) {
  const auto read = ParseTokenizerJson(
      R"({"version":"1.0","pre_tokenizer":{"type":"Split","pattern":{"Regex":"."},)"
      R"("behavior":"Isolated","invert":false},"decoder":null,)"
      R"("model":{"type":"BPE","vocab":{"b":0,"a":1,"\u0000":2,"\ud83d\ude00":3},"merges":[]}})",
      "F");
  ASSERT_TRUE(read.has_value()) << read.error().Message();
  EXPECT_THAT(*(*read)->Encode("ab\0\xF0\x9F\x98\x80"s), ElementsAre(1, 0, 2, 3));
}

TEST(TokenizerJson, RefusesWhatItCannotKeep) {
  const json good = json::parse(Characters("ab")->Json());
  const auto with = [&good](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return ErrorOf(changed.dump());
  };
  EXPECT_EQ(ErrorOf(good.dump()), "");
  EXPECT_THAT(with("/model/merges", {"a b"}), HasSubstr("merge 1 with \"ab\", which is no token"));
  EXPECT_THAT(with("/model/type", "WordPiece"),
              HasSubstr("model.type: found WordPiece, expected BPE"));
  EXPECT_THAT(with("/model", nullptr), HasSubstr("model.type: found none, expected BPE"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"b", 2}}), HasSubstr("id 2 of token 'b'"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"b", 0}}), HasSubstr("id 0 twice"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"b", -1}}), HasSubstr("id -1 of token 'b'"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"b", 1.0}}), HasSubstr("id 1.0 of token 'b'"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"b", "1"}}), HasSubstr("id string of token"));
  EXPECT_THAT(with("/model/vocab", json::object()), HasSubstr("no tokens"));
  EXPECT_THAT(with("/model/vocab", json::array()), HasSubstr("found array"));
  EXPECT_THAT(with("/model/vocab", json{{"a", 0}, {"bc", 1}}), HasSubstr("token 'bc'"));
  EXPECT_THAT(with("/model/vocab", json{{"", 0}}), HasSubstr("token ''"));
  EXPECT_THAT(with("/model/unk_token", "c"), HasSubstr("model.unk_token"));
  EXPECT_THAT(with("/normalizer", json{{"type", "NFKC"}}), HasSubstr("normalizer: found NFKC"));
  EXPECT_THAT(with("/added_tokens", json{{{"id", 2}}}), HasSubstr("added_tokens"));
  EXPECT_THAT(with("/pre_tokenizer", json{{"type", "Whitespace"}}), HasSubstr("Whitespace"));
  EXPECT_THAT(with("/decoder", json{{"type", "WordPiece"}}), HasSubstr("decoder"));
  EXPECT_THAT(with("/post_processor", json{{"type", "TemplateProcessing"}}),
              HasSubstr("post_processor"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("F: found text that stops being JSON at byte 1"));
  EXPECT_THAT(ErrorOf("{\"model\": \"\xFF\"}"), HasSubstr("stops being JSON at byte"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("found array"));
  EXPECT_THAT(ErrorOf("{\"a\":1e999}"), HasSubstr("beyond every range"));
  EXPECT_THAT(ErrorOf(R"({"model":{"type":"BPE","merges":[],"vocab":{"a":0,"a":1}}})"),
              HasSubstr("two keys \"a\""));
}

}  // namespace
}  // namespace heed
