#include "text/tokenizer_bin.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "base/plural.h"
#include "text/bpe_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

template <class T>
T Load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

bool IsByteName(std::string_view piece) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' && is_hex(piece[3]) &&
         is_hex(piece[4]);
}

// The three control pieces come first; their names have new lines around them.
void SetKind(size_t id, ScoredPiece* piece) {
  static constexpr const char* kNames[] = {"<unk>", "<s>", "</s>"};
  if (id < 3) {
    piece->text = kNames[id];
    piece->kind = id == 0 ? PieceKind::kUnknown : PieceKind::kControl;
  } else if (IsByteName(piece->text)) {
    piece->kind = PieceKind::kByte;
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ParseTokenizerBin(std::string_view bytes,
                                                     const std::string& where) {
  constexpr size_t kHeader = 4, kPieceHeader = 8;
  const auto bad = [&where](std::string found, std::string expected) {
    return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected),
                "copy the file again from its source");
  };
  if (bytes.size() < kHeader)
    return bad(fmt::format("{} byte{}", bytes.size(), Plural(std::ssize(bytes))), "a vocabulary");
  const auto longest = Load<int32_t>(bytes, 0);
  std::vector<ScoredPiece> pieces;
  for (size_t at = kHeader; at < bytes.size();) {
    const size_t left = bytes.size() - at;
    const int32_t length = left < kPieceHeader ? -1 : Load<int32_t>(bytes, at + 4);
    if (length < 0 || length > longest || static_cast<size_t>(length) > left - kPieceHeader) {
      return bad(fmt::format("piece {} of {} byte{} at offset {}", pieces.size(), length,
                             Plural(length), at),
                 fmt::format("0 to {} bytes, and as many left in the file", longest));
    }
    ScoredPiece& piece = pieces.emplace_back();
    piece.text = bytes.substr(at + kPieceHeader, static_cast<size_t>(length));
    piece.score = Load<float>(bytes, at);
    if (const size_t byte = FirstBadUtf8(piece.text); byte != std::string::npos) {
      return BadUtf8(where, at + kPieceHeader + byte, piece.text[byte]);
    }
    SetKind(pieces.size() - 1, &piece);
    at += kPieceHeader + static_cast<size_t>(length);
  }
  if (pieces.size() < 3)
    return bad(fmt::format("{} piece{}", pieces.size(), Plural(std::ssize(pieces))), "at least 3");
  HEED_ASSIGN(BpeVocabulary vocabulary, VocabularyFromScores(pieces, where));
  vocabulary.prefix = BpeVocabulary::Prefix::kText;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  return BpeTokenizer::Create(std::move(vocabulary), where);
}

}  // namespace heed
