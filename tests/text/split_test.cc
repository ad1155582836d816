#include "text/split.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/shell.h"

namespace heed {
namespace {

constexpr SplitPattern kPatterns[] = {SplitPattern::kGpt2, SplitPattern::kCl100k,
                                      SplitPattern::kQwen2};

std::vector<std::string> Pieces(SplitPattern pattern, std::string_view text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = PieceEnd(pattern, text, at);
    if (end <= at || end > text.size()) return {"no progress"};
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

using Strings = std::vector<std::string>;

TEST(Split, CutsAsTheExpressionsSay) {
  const std::string text = "DON'T don't  go12345 !\n\n x";
  EXPECT_EQ(Pieces(SplitPattern::kGpt2, text),
            (Strings{"DON", "'", "T", " don", "'t", " ", " go", "12345", " !", "\n\n", " x"}));
  EXPECT_EQ(Pieces(SplitPattern::kCl100k, text),
            (Strings{"DON", "'T", " don", "'t", " ", " go", "123", "45", " !\n\n", " x"}));
  EXPECT_EQ(Pieces(SplitPattern::kQwen2, text), (Strings{"DON", "'T", " don", "'t", " ", " go", "1",
                                                         "2", "3", "4", "5", " !\n\n", " x"}));
  EXPECT_EQ(Pieces(SplitPattern::kNone, text), (Strings{text}));
}

// The long s folds to s where case does not count.
TEST(Split, KnowsTheLongS) {
  EXPECT_EQ(Pieces(SplitPattern::kCl100k, "a'\u017Fb"), (Strings{"a", "'\u017F", "b"}));
  EXPECT_EQ(Pieces(SplitPattern::kGpt2, "a'\u017Fb"), (Strings{"a", "'", "\u017Fb"}));
}

// tests/golden/split.json was made with the regular expressions of JavaScript, \s spelled out as
// White_Space and letters of contractions in both cases.
TEST(Split, EqualsTheRegularExpressions) {
  const auto golden = nlohmann::json::parse(ReadText(HEED_GOLDEN_DIR "/split.json"));
  ASSERT_GE(golden.size(), 300u);
  for (const auto& entry : golden) {
    const std::string text = entry["text"];
    EXPECT_EQ(Pieces(SplitPattern::kGpt2, text), entry["gpt2"].get<Strings>()) << entry;
    EXPECT_EQ(Pieces(SplitPattern::kCl100k, text), entry["cl100k"].get<Strings>()) << entry;
    EXPECT_EQ(Pieces(SplitPattern::kQwen2, text), entry["qwen2"].get<Strings>()) << entry;
  }
}

TEST(Split, NamesItsPatterns) {
  for (const SplitPattern pattern : kPatterns) EXPECT_EQ(PatternOf(RegexOf(pattern)), pattern);
  EXPECT_EQ(PatternOf("\\s+"), std::nullopt);
}

// Bytes of letters, spaces, quotes, digits, and of characters cut in two.
std::string AnyText() {
  const auto piece = rc::gen::element<std::string>("a", "S", " ", "'", "'s", "\n", "1", "!", "\xC3",
                                                   "\u00e9", "\u3002", "\u0301", "\u4e16", "\xFF",
                                                   "\u00a0", "\u3000", "\u00bd", "\r");
  std::string text;
  for (const std::string& part : *rc::gen::container<std::vector<std::string>>(piece)) text += part;
  return text;
}

RC_GTEST_PROP(Split, CutsChangeNothing, ()) {
  const std::string text = AnyText();
  for (const SplitPattern pattern : kPatterns) {
    const Strings whole = Pieces(pattern, text);
    for (size_t at = 0; at <= text.size(); ++at) {
      if (!SplitsAt(text, at)) continue;
      Strings parts = Pieces(pattern, text.substr(0, at));
      const Strings rest = Pieces(pattern, text.substr(at));
      parts.insert(parts.end(), rest.begin(), rest.end());
      RC_ASSERT(parts == whole);
    }
  }
}

}  // namespace
}  // namespace heed
