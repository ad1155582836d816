#include "text/scored_pieces.h"

#include <algorithm>

#include "text/tokenizer_bin.h"

namespace heed {
namespace {

constexpr const char* kSpaceMark = "\xE2\x96\x81";

bool IsByteToken(const BpeVocabulary& v, const std::string& token) {
  return v.byte_fallback && token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
}

std::string Marked(const std::string& token) {
  std::string text;
  for (const char c : token) text += c == ' ' ? std::string(kSpaceMark) : std::string(1, c);
  return text;
}

}  // namespace

std::vector<ScoredPiece> PiecesOf(const BpeVocabulary& v) {
  std::vector<ScoredPiece> pieces;
  for (const std::string& token : v.tokens) {
    const bool byte = IsByteToken(v, token);
    pieces.push_back(
        {byte ? token : Marked(token), 0, byte ? PieceKind::kByte : PieceKind::kNormal});
  }
  for (const AddedToken& added : v.added) {
    pieces[added.id].kind = added.special ? PieceKind::kControl : PieceKind::kUserDefined;
  }
  if (v.unknown) pieces[*v.unknown].kind = PieceKind::kUnknown;
  std::vector<bool> merged(pieces.size());
  for (const BpeMerge& merge : v.merges) {
    const float score = -static_cast<float>(merge.rank);
    float& best = pieces[merge.result].score;
    best = merged[merge.result] ? std::max(best, score) : score;
    merged[merge.result] = true;
  }
  return pieces;
}

std::optional<std::string> TokenizerBin(const Tokenizer& tokenizer) {
  const auto* bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (bpe == nullptr || bpe->vocabulary().symbols != BpeVocabulary::Symbols::kCharacters) {
    return std::nullopt;
  }
  std::string text;
  const auto put = [&text](auto number) {
    text.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  std::vector<ScoredPiece> pieces = PiecesOf(bpe->vocabulary());
  int32_t longest = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    // llama2.c keeps the bytes that a piece spells.
    if (pieces[id].kind != PieceKind::kByte) pieces[id].text = bpe->vocabulary().tokens[id];
    longest = std::max(longest, static_cast<int32_t>(pieces[id].text.size()));
  }
  put(longest);
  for (const ScoredPiece& piece : pieces) {
    put(piece.score);
    put(static_cast<int32_t>(piece.text.size()));
    text += piece.text;
  }
  const auto again = ParseTokenizerBin(text, "tokenizer.bin");
  if (!again || (*again)->Fingerprint() != tokenizer.Fingerprint()) return std::nullopt;
  return text;
}

}  // namespace heed
