#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace heed {
namespace {

using std::string_literals::operator""s;

std::string Spell(char32_t code) {
  std::string out;
  AppendUtf8(code, &out);
  return out;
}

// The whole of `bytes` through the splitter, cut before each of `cuts`.
std::string Stream(const std::string& bytes, const std::vector<size_t>& cuts) {
  Utf8Splitter splitter;
  std::string out;
  size_t begin = 0;
  for (size_t cut : cuts) {
    out += splitter.Push(bytes.substr(begin, cut - begin));
    begin = cut;
  }
  out += splitter.Push(bytes.substr(begin));
  return out + splitter.Flush();
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string bytes = Spell(code);
    const Utf8Step step = NextUtf8(bytes);
    ASSERT_EQ(step.kind, Utf8Kind::kCharacter) << static_cast<uint32_t>(code);
    ASSERT_EQ(step.code, code);
    ASSERT_EQ(step.length, static_cast<int>(bytes.size()));
  }
}

// Lengths of The Unicode Standard's example characters (table 3-4).
TEST(Utf8, KnownSpellings) {
  EXPECT_EQ(Spell(U'M'), "\x4D");
  EXPECT_EQ(Spell(0x0430), "\xD0\xB0");
  EXPECT_EQ(Spell(0x4E8C), "\xE4\xBA\x8C");
  EXPECT_EQ(Spell(0x10302), "\xF0\x90\x8C\x82");
}

TEST(Utf8, RefusesWhatIsNotACharacter) {
  const struct {
    std::string bytes;
    size_t bad;
  } cases[] = {
      {"ab\x80"s, 2},            // a continuation alone
      {"\xC0\xAF"s, 0},          // overlong '/'
      {"\xC1\xBF"s, 0},          // overlong
      {"x\xE0\x80\xAF"s, 1},     // overlong
      {"\xF0\x80\x80\xAF"s, 0},  // overlong
      {"\xED\xA0\x80"s, 0},      // surrogate U+D800
      {"\xED\xBF\xBF"s, 0},      // surrogate U+DFFF
      {"\xF4\x90\x80\x80"s, 0},  // U+110000
      {"\xF5\x80\x80\x80"s, 0},  // beyond
      {"\xFF"s, 0},              // never a byte of UTF-8
      {"\xC3\xA9\xE2\x82"s, 2},  // cut short
      {"\xE2\x82\x41"s, 0},      // cut short by a letter
      {"a\0\xC3"s, 2},           // NUL is a character
  };
  for (const auto& c : cases) EXPECT_EQ(FirstBadUtf8(c.bytes), c.bad) << c.bytes;
  EXPECT_EQ(FirstBadUtf8("h\xC3\xA9\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\0"s),
            std::string::npos);
  EXPECT_EQ(FirstBadUtf8(""), std::string::npos);
}

// The Unicode Standard's examples of replacing maximal subparts (tables 3-8 to 3-11).
TEST(Utf8Splitter, ReplacesMaximalSubparts) {
  const auto r = [](int n) {
    std::string out;
    while (n-- > 0) out += "\xEF\xBF\xBD";
    return out;
  };
  EXPECT_EQ(Stream("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", {}), r(8) + "A");
  EXPECT_EQ(Stream("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", {}), r(8) + "A");
  EXPECT_EQ(Stream("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", {}), r(5) + "A" + r(2) + "B");
  EXPECT_EQ(Stream("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", {}), r(4) + "A");
}

TEST(Utf8Splitter, EverySplitGivesTheSameWholeCharacters) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z\n\xE4\xBA\x8C";
  for (size_t i = 0; i <= text.size(); ++i) {
    for (size_t j = i; j <= text.size(); ++j) EXPECT_EQ(Stream(text, {i, j}), text);
  }
  Utf8Splitter splitter;
  std::string seen;
  for (char byte : text) {
    const std::string out = splitter.Push({&byte, 1});
    EXPECT_EQ(FirstBadUtf8(out), std::string::npos);
    seen += out;
  }
  EXPECT_EQ(seen, text);
  EXPECT_EQ(splitter.Flush(), "");
}

TEST(Utf8Splitter, FlushEndsAnUnfinishedCharacter) {
  Utf8Splitter splitter;
  EXPECT_EQ(splitter.Push("x\xF0\x9F\x98"), "x");
  EXPECT_EQ(splitter.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(splitter.Flush(), "");
  EXPECT_EQ(splitter.Push("y"), "y");
}

RC_GTEST_PROP(Utf8Splitter, AnyBytesAnySplit, (const std::vector<uint8_t>& raw)) {
  const std::string bytes(raw.begin(), raw.end());
  const std::string whole = Stream(bytes, {});
  RC_ASSERT(FirstBadUtf8(whole) == std::string::npos);
  if (FirstBadUtf8(bytes) == std::string::npos) RC_ASSERT(whole == bytes);
  const size_t i = *rc::gen::inRange<size_t>(0, bytes.size() + 1);
  const size_t j = *rc::gen::inRange<size_t>(i, bytes.size() + 1);
  RC_ASSERT(Stream(bytes, {i, j}) == whole);
}

TEST(Utf8, NamesCharacters) {
  EXPECT_EQ(CharacterName(0xE9), "U+00E9 '\xC3\xA9'");
  EXPECT_EQ(CharacterName('\n'), "U+000A");
  EXPECT_EQ(CharacterName(' '), "U+0020");
  EXPECT_EQ(CharacterName(0x1F600), "U+1F600 '\xF0\x9F\x98\x80'");
}

}  // namespace
}  // namespace heed
