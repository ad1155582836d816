// Keys of short texts: the text's bytes and zeros behind them, whole or joined from two parts.
#include "text/bytes_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace heed {
namespace {

// Byte i of the key as its definition says.
ShortKey Defined(const std::string& text) {
  ShortKey key;
  for (size_t i = 0; i < text.size(); ++i) {
    (i < 8 ? key.low : key.high) |= uint64_t{static_cast<uint8_t>(text[i])} << i % 8 * 8;
  }
  return key;
}

// Of bytes that are all different, with zeros and high bits among them.
std::string Text(size_t n, uint8_t first) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>(first + 37 * i);
  return text;
}

TEST(BytesHash, AKeyHoldsTheBytesAndZeros) {
  for (size_t n = 0; n <= kShortBytes; ++n) {
    for (const uint8_t first : {0, 1, 200}) {
      EXPECT_EQ(ShortKeyOf(Text(n, first)), Defined(Text(n, first))) << n;
    }
  }
}

TEST(BytesHash, KeysOfTwoTextsJoin) {
  for (size_t n = 0; n <= kShortBytes; ++n) {
    for (size_t left = 0; left <= n; ++left) {
      const std::string text = Text(n, 99);
      EXPECT_EQ(Joined(Defined(text.substr(0, left)), left, Defined(text.substr(left))),
                Defined(text))
          << left << " of " << n;
    }
  }
}

TEST(BytesHash, LengthsAndBytesCount) {
  EXPECT_NE(HashBytes("a"), HashBytes(std::string("a\0", 2)));
  for (const size_t n : {1, 7, 8, 16, 17, 40}) {
    std::string text = Text(n, 5);
    const uint64_t hash = HashBytes(text);
    for (size_t i = 0; i < n; ++i) {
      text[i] ^= 1;
      EXPECT_NE(HashBytes(text), hash) << i << " of " << n;
      text[i] ^= 1;
    }
    EXPECT_EQ(HashBytes(text), hash);
  }
}

}  // namespace
}  // namespace heed
