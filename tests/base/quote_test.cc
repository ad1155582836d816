#include "base/quote.h"

#include <gtest/gtest.h>

namespace heed {
namespace {

TEST(Quoted, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(Quoted("wte.weight"), "\"wte.weight\"");
  EXPECT_EQ(Quoted("\x1b[2J\n"), "\"\\x1b[2J\\x0a\"");
  EXPECT_EQ(Quoted(std::string(61, 'a')), "\"" + std::string(60, 'a') + "...\"");
}

// Sequences of RFC 3629, section 4 and its borders.
TEST(IsUtf8, TakesExactlyTheShortestFormsOfCharacters) {
  for (const char* good :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << Quoted(good);
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
                          "\xc2", "\xe2\x82", "\xf0\x90\x80", "a\xc2z", "\xe2\x28\xa1"}) {
    EXPECT_FALSE(IsUtf8(bad)) << Quoted(bad);
  }
}

TEST(ShellWord, QuotesWhatAShellWouldSplit) {
  EXPECT_EQ(ShellWord("runs/first-1.txt"), "runs/first-1.txt");
  EXPECT_EQ(ShellWord("my run"), "'my run'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord(""), "''");
}

TEST(Printable, KeepsTextAndStopsControls) {
  EXPECT_EQ(Printable("naïve → 😀"), "naïve → 😀");
  EXPECT_EQ(Printable("a\nb\x1b[31m\x7f"), "a?b?[31m?");
  // Cut, overlong, surrogate and C1 sequences.
  EXPECT_EQ(Printable("\xE2\x86"), "??");
  EXPECT_EQ(Printable("\xC0\xAF"), "??");
  EXPECT_EQ(Printable("\xED\xA0\x80"), "???");
  EXPECT_EQ(Printable("\xC2\x9B"), "??");
}

}  // namespace
}  // namespace heed
