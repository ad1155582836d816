// How byte-level vocabularies cut a text into pieces before anything merges: scanners written by
// hand for the regular expressions that published vocabularies name.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace heed {

enum class SplitPattern {
  kNone,    // the whole text is one piece
  kGpt2,    // GPT-2 (openai/gpt-2, encoder.py)
  kCl100k,  // cl100k of tiktoken, and Llama 3
  kQwen2,   // the same with one digit at a time
};

// The end of the piece that begins at text[at]; `at` < text.size().
size_t PieceEnd(SplitPattern pattern, std::string_view text, size_t at);

// Whether, for every pattern, the pieces of text[0, at) and of text[at, end) are the pieces of the
// whole: behind a letter, where something begins that is no part of a word and no combining mark.
bool SplitsAt(std::string_view text, size_t at);

// The regular expression of a pattern, and back; kNone has none.
std::string_view RegexOf(SplitPattern pattern);
std::optional<SplitPattern> PatternOf(std::string_view regex);

}  // namespace heed
