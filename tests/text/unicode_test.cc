// Classes of characters.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace heed {
namespace {

// What the strict decoder of utf8.h and the table of classes say.
ClassedChar StepByStep(std::string_view text, size_t at) {
  const Utf8Step step = NextUtf8(text.substr(at, 4));
  if (step.kind != Utf8Kind::kCharacter) return {};
  return {ClassOf(step.code), step.length};
}

TEST(CharAt, AgreesWithTheStrictDecoderOnAnyBytes) {
  // Around every bound of a second, third or fourth byte.
  const std::string next("\x00\x41\x7F\x80\x8F\x90\x9F\xA0\xA9\xBF\xC0\xC3\xE2\xFF", 14);
  for (int first = 0x80; first < 0x100; ++first) {
    for (int second = 0; second < 0x100; ++second) {
      for (const char third : next) {
        for (const char fourth : {'A', '\x80', '\xBF'}) {
          const std::string text = {static_cast<char>(first), static_cast<char>(second), third,
                                    fourth};
          for (size_t length = 1; length <= text.size(); ++length) {
            const std::string_view part = std::string_view(text).substr(0, length);
            const ClassedChar got = CharAt(part, 0), want = StepByStep(part, 0);
            ASSERT_EQ(got.length, want.length) << first << " " << second << " of " << length;
            ASSERT_EQ(got.kind, want.kind) << first << " " << second << " of " << length;
          }
        }
      }
    }
  }
}

// Unicode 15's chart, one character of each number of bytes and class.
TEST(CharAt, KnowsClasses) {
  const auto kind = [](std::string_view text) { return CharAt(text, 0).kind; };
  EXPECT_EQ(kind("\u00E9"), CharClass::kLetter);
  EXPECT_EQ(kind("\u6F22"), CharClass::kLetter);
  EXPECT_EQ(kind("\u0663"), CharClass::kNumber);
  EXPECT_EQ(kind("\u00A0"), CharClass::kSpace);
  EXPECT_EQ(kind("\u3000"), CharClass::kSpace);
  EXPECT_EQ(kind("\u20AC"), CharClass::kOther);
  EXPECT_EQ(kind("\U0001D400"), CharClass::kLetter);
  EXPECT_EQ(kind("\U0001F600"), CharClass::kOther);
}

}  // namespace
}  // namespace heed
