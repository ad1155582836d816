// Byte-pair vocabularies with merges: GPT-2's over bytes, SentencePiece's over characters.
// Sources: openai/gpt-2, encoder.py; T. Kudo and J. Richardson, "SentencePiece", 2018.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/merges.h"
#include "text/split.h"
#include "text/token_index.h"
#include "text/tokenizer.h"

namespace heed {

// A token that is looked for in the text before anything else; its content is its bytes.
struct AddedToken {
  int32_t id = 0;
  bool special = true;  // for Hugging Face, which leaves such tokens out of what it decodes
  bool lstrip = false, rstrip = false;  // takes the white space on that side
};

// All that a BpeTokenizer is made from.
struct BpeVocabulary {
  enum class Symbols {
    kBytes,       // a text begins as its bytes; cut into pieces by `split`
    kCharacters,  // a text begins as its characters
  };
  // When a text, or each part of it between added tokens, gets a space before it.
  enum class Prefix { kNone, kText, kEveryPart };

  Symbols symbols = Symbols::kBytes;
  std::vector<std::string> tokens;  // [id]: bytes; a space where SentencePiece writes U+2581
  std::vector<BpeMerge> merges;
  SplitPattern split = SplitPattern::kGpt2;  // kBytes alone
  bool ignore_merges = false;                // a piece that is a token stays whole
  bool nfc = false;                          // text is read in Unicode's normal form C
  // Of kCharacters: SentencePiece's U+2581 stands for the space, in the text too.
  bool marked_spaces = false;
  Prefix prefix = Prefix::kNone;
  bool prefix_once = false;      // not where a space stands already
  bool collapse_spaces = false;  // runs of spaces become one, none at the ends
  // What becomes of a character without a token: its bytes, tokens named <0x00> to <0xFF>, else
  // `unknown`, else it is an error.
  bool byte_fallback = false;
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;  // `unknown` side by side becomes one

  std::vector<AddedToken> added;
  std::optional<int32_t> bos, eos;
};

// The merges of pairs of tokens, the first of the list merging first, both as a file spells them.
// Errors (kFormat): a merge whose parts or whole are no tokens.
Result<std::vector<BpeMerge>> MergesOf(
    std::span<const std::pair<std::string_view, std::string_view>> pairs,
    std::span<const std::string_view> tokens, const std::string& where);

// SentencePiece's kinds of pieces, numbered as in its model files and in GGUF.
enum class PieceKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct ScoredPiece {
  std::string text;  // with U+2581 or a space for the space
  float score = 0;
  PieceKind kind = PieceKind::kNormal;
};

// A vocabulary of SentencePiece's BPE type: the pair whose whole has the highest score merges
// first. Fills tokens, merges, byte_fallback, unknown and added; the caller knows prefix, bos and
// eos. Errors (kFormat): no pieces, more than one unknown, a normal piece twice, a score that is
// not a number, byte pieces that are not all 256.
Result<BpeVocabulary> VocabularyFromScores(std::span<const ScoredPiece> pieces,
                                           const std::string& where);

// Encoding takes time near-linear in the text, whatever it holds. Bytes that are not UTF-8 are kept
// over bytes and where there is byte fallback. Any number of threads may encode at a time.
class BpeTokenizer : public Tokenizer {
 public:
  // Errors (kFormat): no tokens, a token or a merge twice, ids outside the vocabulary, an added
  // token without text, byte fallback without all 256 byte tokens.
  static Result<std::unique_ptr<BpeTokenizer>> Create(BpeVocabulary vocabulary,
                                                      const std::string& where);
  ~BpeTokenizer() override;

  std::string_view kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(v_.tokens.size()); }
  std::string_view TokenBytes(int32_t id) const override;
  std::optional<int32_t> bos() const override { return v_.bos; }
  std::optional<int32_t> eos() const override { return v_.eos; }
  std::string_view BytesAfter(std::optional<int32_t> previous, int32_t id) const override;
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const TextPlace& place) const override;
  size_t CutAt(std::string_view text, size_t from) const override;
  std::string Json() const override;

  const BpeVocabulary& vocabulary() const { return v_; }

 protected:
  std::vector<uint64_t> Rules() const override;

 private:
  class Encoder;  // one call of Encode
  struct Scratch;
  class Lease;

  explicit BpeTokenizer(BpeVocabulary vocabulary);
  Status Prepare(const std::string& where);
  Status CheckIds(const std::string& where) const;
  Status FindByteTokens(const TokenIndex<std::string>& index, const std::string& where);
  void FindCharacters();
  bool WordsAreApart() const;
  // The added token at text[at], or null; the longest wins.
  const AddedToken* AddedAt(std::string_view text, size_t at) const;
  bool IsInsideAdded(std::string_view text, size_t at) const;

  BpeVocabulary v_;
  MergeTable table_;
  std::vector<int32_t> byte_ids_;                 // [byte]: its token, or -1
  std::unordered_map<int32_t, uint8_t> byte_of_;  // of the tokens <0x00> to <0xFF>
  std::vector<int32_t> symbol_ids_;               // [character]: its token, or -1
  TokenIndex<std::string> index_;                 // for ignore_merges
  std::vector<AddedToken> added_;                 // longest first
  bool added_begins_[256] = {};                   // [byte]: an added token begins with it
  bool words_apart_ = false;                      // no token has a space behind another character

  // Scratch is handed from call to call, so that its cache of pieces stays warm.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace heed
