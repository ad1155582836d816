#include "base/fields_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace heed {
namespace {

template <class T>
std::string Refusal(std::string_view text) {
  T value{};
  const Status status = ParseField("--x", text, &value);
  return status ? "accepted" : status.error().Message();
}

TEST(FieldsText, IntegersAreReadWholeOrRefused) {
  int64_t value = 0;
  ASSERT_TRUE(ParseField("--x", "-9223372036854775808", &value));
  EXPECT_EQ(value, std::numeric_limits<int64_t>::min());
  for (const char* text : {"", " 4", "4 ", "4x", "0x10", "1e3", "4.0", "four", "--4", "1_000"}) {
    EXPECT_EQ(Refusal<int64_t>(text),
              "--x: found '" + std::string(text) + "', expected an integer");
  }
  EXPECT_EQ(Refusal<int64_t>("9223372036854775808"),
            "--x: found '9223372036854775808', expected an integer of at most 64 bits");
}

TEST(FieldsText, NumbersAreFiniteAndWhole) {
  double value = 0;
  ASSERT_TRUE(ParseField("--x", "6e-4", &value));
  EXPECT_EQ(value, 6e-4);
  for (const char* text : {"nan", "NaN", "inf", "-inf", "infinity"}) {
    EXPECT_EQ(Refusal<double>(text),
              "--x: found '" + std::string(text) + "', expected a finite number");
  }
  for (const char* text : {"", "0.1.2", "1e", "0,5", "1 ", "x"}) {
    EXPECT_EQ(Refusal<double>(text), "--x: found '" + std::string(text) + "', expected a number");
  }
  EXPECT_NE(Refusal<double>("1e999"), "accepted");
  EXPECT_EQ(value, 6e-4);
}

TEST(FieldsText, TruthHasPythonsSpellingToo) {
  for (const char* text : {"true", "True", "1", "yes", "ON"}) {
    bool value = false;
    EXPECT_TRUE(ParseField("--x", text, &value) && value) << text;
  }
  for (const char* text : {"false", "False", "0", "no", "off"}) {
    bool value = true;
    EXPECT_TRUE(ParseField("--x", text, &value) && !value) << text;
  }
  EXPECT_EQ(Refusal<bool>("maybe"), "--x: found 'maybe', expected true or false");
  EXPECT_EQ(Refusal<bool>(""), "--x: found '', expected true or false");
}

TEST(FieldsText, SpellingsOfJsonAndToml) {
  EXPECT_EQ(JsonText("a\"b\\\n\xff"), "\"a\\\"b\\\\\\n\xEF\xBF\xBD\"");
  EXPECT_EQ(TomlText(std::string("x\x7f")), "\"x\\u007F\"");
  EXPECT_EQ(TomlText(10000.0), "10000.0");
  EXPECT_EQ(TomlText(1e-5), "1e-05");
  EXPECT_EQ(JsonText(0.1), "0.1");
  EXPECT_EQ(JsonText(std::nan("")), "null");
  EXPECT_EQ(JsonText(std::vector<double>{0.5, 1}), "[0.5,1]");
}

}  // namespace
}  // namespace heed
