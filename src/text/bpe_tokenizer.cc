#include "text/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "base/aside.h"
#include "base/quote.h"
#include "text/byte_tokenizer.h"
#include "text/piece_cache.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace heed {
namespace {

constexpr char32_t kMark = 0x2581;
constexpr std::string_view kMarkBytes = "\u2581";

std::string ByteName(int byte) { return fmt::format("<0x{:02X}>", byte); }

// SentencePiece's spelling with spaces for its marks.
std::string WithSpaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const bool mark = piece.substr(at).starts_with(kMarkBytes);
    text += mark ? ' ' : piece[at];
    at += mark ? kMarkBytes.size() : 1;
  }
  return text;
}

// Bytes of the space at text[at], or 0 when none stands there.
size_t SpaceAt(std::string_view text, size_t at, bool marked) {
  if (text[at] == ' ') return 1;
  return marked && text[at] == kMarkBytes[0] && text.substr(at).starts_with(kMarkBytes)
             ? kMarkBytes.size()
             : 0;
}

// The end of the spaces at text[at] and the word behind them.
size_t WordEnd(std::string_view text, size_t at, bool marked) {
  while (at < text.size()) {
    const size_t space = SpaceAt(text, at, marked);
    if (space == 0) break;
    at += space;
  }
  while (at < text.size() && SpaceAt(text, at, marked) == 0) ++at;
  return at;
}

// Runs of spaces as one; none at the end, and none at the start unless the text goes on.
std::string Collapsed(std::string_view text, bool continues) {
  std::string out;
  bool pending = false;
  for (const char c : text) {
    if (c == ' ') {
      pending = continues || !out.empty();
      continue;
    }
    if (pending) out += ' ';
    pending = false;
    out += c;
  }
  return out;
}

size_t TrimmedEnd(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    size_t last = end - 1;
    while (last > begin && (text[last] & 0xC0) == 0x80) --last;
    if (CharAt(text, last).kind != CharClass::kSpace) break;
    end = last;
  }
  return end;
}

size_t SpacesEnd(std::string_view text, size_t at) {
  while (at < text.size()) {
    const ClassedChar next = CharAt(text, at);
    if (next.kind != CharClass::kSpace) break;
    at += next.length;
  }
  return at;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

namespace {

using Pairs = std::span<const std::pair<std::string_view, std::string_view>>;
using SpelledIndex = TokenIndex<std::string_view>;

// Fills merges[i] for begin <= i < end, and returns the first i of which a part or the whole is no
// token, or `end`.
size_t FindMerges(const SpelledIndex& index, Pairs pairs, size_t begin, size_t end,
                  BpeMerge* merges) {
  // So many at once that the index's lines arrive before they are read.
  constexpr size_t kAtOnce = 8;
  std::array<SpelledIndex::Probe, 3> probes[kAtOnce];
  std::string wholes[kAtOnce];
  for (size_t i = begin; i < end; ++i) {
    const size_t in_block = (i - begin) % kAtOnce;
    for (size_t n = 0; in_block == 0 && n < std::min(kAtOnce, end - i); ++n) {
      const auto& [left, right] = pairs[i + n];
      probes[n] = {SpelledIndex::Probe(left), SpelledIndex::Probe(right), {}};
      const size_t size = left.size() + right.size();
      if (size <= kShortBytes) {
        const ShortKey whole = Joined(probes[n][0].key, left.size(), probes[n][1].key);
        probes[n][2] = SpelledIndex::Probe(whole, size);
      } else {
        probes[n][2] = SpelledIndex::Probe(wholes[n].assign(left).append(right));
      }
      for (const SpelledIndex::Probe& probe : probes[n]) index.Prefetch(probe);
    }
    BpeMerge& merge = merges[i];
    merge = {index.Find(probes[in_block][0]), index.Find(probes[in_block][1]),
             index.Find(probes[in_block][2]), static_cast<uint32_t>(i)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) return i;
  }
  return end;
}

}  // namespace

Result<std::vector<BpeMerge>> MergesOf(Pairs pairs, std::span<const std::string_view> tokens,
                                       const std::string& where) {
  SpelledIndex index(tokens);
  for (size_t id = 0; id < tokens.size(); ++id) index.Add(static_cast<int32_t>(id));
  std::vector<BpeMerge> merges(pairs.size());
  const size_t half = pairs.size() / 2;
  size_t bad = 0, bad_behind = 0;
  Aside behind([&] { bad_behind = FindMerges(index, pairs, half, pairs.size(), merges.data()); });
  bad = FindMerges(index, pairs, 0, half, merges.data());
  behind.Join();
  if (bad == half) bad = bad_behind;
  if (bad == pairs.size()) return merges;
  const auto& [left, right] = pairs[bad];
  const std::string part(merges[bad].left < 0    ? left
                         : merges[bad].right < 0 ? right
                                                 : std::string(left).append(right));
  return Fail(ErrorKind::kFormat, where,
              fmt::format("merge {} with {}, which is no token", bad + 1, Quoted(part)),
              "merges of tokens into tokens", "vocabulary and merges are of two models");
}

namespace {

// Every way to make a piece from two others, by the piece's score.
void MergesFromScores(std::span<const ScoredPiece> pieces, BpeVocabulary* vocabulary) {
  std::vector<float> scores;
  TokenIndex<std::string> normal(vocabulary->tokens);
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].kind != PieceKind::kNormal) continue;
    normal.Add(static_cast<int32_t>(id));
    scores.push_back(pieces[id].score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (size_t at_id = 0; at_id < pieces.size(); ++at_id) {
    const std::string_view text = vocabulary->tokens[at_id];
    const auto id = static_cast<int32_t>(at_id);
    if (normal.Find(text) != id) continue;
    const auto rank =
        std::lower_bound(scores.begin(), scores.end(), pieces[id].score, std::greater<>()) -
        scores.begin();
    for (size_t at = CharacterStart(text, 1); at < text.size(); at = CharacterStart(text, at + 1)) {
      const int32_t left = normal.Find(text.substr(0, at)), right = normal.Find(text.substr(at));
      if (left < 0 || right < 0) continue;
      vocabulary->merges.push_back({left, right, id, static_cast<uint32_t>(rank)});
    }
  }
}

Status TakePiece(const ScoredPiece& piece, const std::string& where, BpeVocabulary* vocabulary) {
  const auto id = static_cast<int32_t>(vocabulary->tokens.size());
  vocabulary->tokens.push_back(WithSpaces(piece.text));
  switch (piece.kind) {
    case PieceKind::kNormal:
      if (std::isfinite(piece.score)) return {};
      return Fail(ErrorKind::kFormat, where, fmt::format("score {} of piece {}", piece.score, id),
                  "a finite number");
    case PieceKind::kUnknown:
      if (vocabulary->unknown) {
        return Fail(ErrorKind::kFormat, where, "two unknown pieces", "one at most");
      }
      vocabulary->unknown = id;
      return {};
    case PieceKind::kControl:
      return {};
    case PieceKind::kByte:
      vocabulary->byte_fallback = true;
      return {};
    case PieceKind::kUserDefined:
      vocabulary->added.push_back({id, /*special=*/false});
      return {};
    case PieceKind::kUnused:
      break;
  }
  return Fail(ErrorKind::kFormat, where,
              fmt::format("piece {} of kind {}", id, static_cast<int>(piece.kind)),
              "normal, unknown, control, user-defined and byte pieces");
}

}  // namespace

Result<BpeVocabulary> VocabularyFromScores(std::span<const ScoredPiece> pieces,
                                           const std::string& where) {
  BpeVocabulary vocabulary;
  vocabulary.symbols = BpeVocabulary::Symbols::kCharacters;
  vocabulary.marked_spaces = true;
  vocabulary.fuse_unknown = true;
  for (const ScoredPiece& piece : pieces) HEED_TRY(TakePiece(piece, where, &vocabulary));
  MergesFromScores(pieces, &vocabulary);
  return vocabulary;
}

// What one call of Encode works in.
struct BpeTokenizer::Scratch {
  PieceCache cache;
  MergeScratch merging;
  std::vector<int32_t> symbols;
};

// A scratch for as long as it lives.
class BpeTokenizer::Lease {
 public:
  explicit Lease(const BpeTokenizer& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    if (owner_.idle_.empty()) {
      scratch_ = std::make_unique<Scratch>();
    } else {
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() const { return *scratch_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

class BpeTokenizer::Encoder {
 public:
  Encoder(const BpeTokenizer& owner, Scratch& scratch, const TextPlace& place)
      : owner_(owner), v_(owner.v_), scratch_(scratch), place_(place) {}

  Result<std::vector<int32_t>> Run(std::string_view text) {
    size_t begin = 0;
    // Most vocabularies here have nothing to look for.
    for (size_t at = v_.added.empty() ? text.size() : 0; at < text.size();) {
      const bool begins = owner_.added_begins_[static_cast<uint8_t>(text[at])];
      const AddedToken* added = begins ? owner_.AddedAt(text, at) : nullptr;
      if (added == nullptr) {
        ++at;
        continue;
      }
      Part(text, begin, added->lstrip ? TrimmedEnd(text, begin, at) : at);
      MakeRoom(1);
      ids_[used_++] = added->id;
      at += v_.tokens[added->id].size();
      if (added->rstrip) at = SpacesEnd(text, at);
      begin = at;
    }
    Part(text, begin, text.size());
    if (error_) return tl::make_unexpected(std::move(*error_));
    ids_.resize(used_);
    return std::move(ids_);
  }

 private:
  void MakeRoom(size_t more) {
    const size_t needed = used_ + more + PieceCache::kRoom;
    if (needed > ids_.size()) ids_.resize(std::max(needed, ids_.size() * 3 / 2));
  }

  // A stretch without added tokens.
  void Part(std::string_view text, size_t begin, size_t end) {
    if (begin == end || error_) return;
    std::string_view part = text.substr(begin, end - begin);
    MakeRoom(part.size() + 1);
    if (v_.symbols == BpeVocabulary::Symbols::kCharacters) {
      CharacterPart(part, begin == 0);
      return;
    }
    for (size_t at = 0; at < part.size();) {
      const size_t piece_end = PieceEnd(v_.split, part, at);
      Piece(part.substr(at, piece_end - at));
      at = piece_end;
    }
  }

  void CharacterPart(std::string_view part, bool first) {
    const size_t start = used_;
    std::string changed;
    if (v_.collapse_spaces) part = changed = Collapsed(part, !first || place_.continues);
    if (GetsPrefix(part, first)) part = changed = ' ' + std::string(part);
    for (size_t at = 0; at < part.size();) {
      const size_t end = owner_.words_apart_ ? WordEnd(part, at, v_.marked_spaces) : part.size();
      Piece(part.substr(at, end - at));
      at = end;
    }
    if (v_.fuse_unknown && v_.unknown) {
      const auto end = ids_.begin() + static_cast<ptrdiff_t>(used_);
      const auto kept =
          std::unique(ids_.begin() + static_cast<ptrdiff_t>(start), end,
                      [this](int32_t a, int32_t b) { return a == b && a == *v_.unknown; });
      used_ = static_cast<size_t>(kept - ids_.begin());
    }
  }

  bool GetsPrefix(std::string_view part, bool first) const {
    if (part.empty() || (first && place_.continues)) return false;
    if (v_.prefix_once && SpaceAt(part, 0, v_.marked_spaces) > 0) return false;
    return v_.prefix == BpeVocabulary::Prefix::kEveryPart ||
           (v_.prefix == BpeVocabulary::Prefix::kText && first);
  }

  void Piece(std::string_view piece) {
    const int64_t known = scratch_.cache.Find(piece, ids_.data() + used_);
    if (known >= 0) {
      used_ += static_cast<size_t>(known);
      return;
    }
    std::vector<int32_t>& symbols = scratch_.symbols;
    symbols.clear();
    const int32_t whole = v_.ignore_merges ? owner_.index_.Find(piece) : -1;
    if (whole >= 0) {
      symbols.push_back(whole);
    } else {
      if (v_.symbols == BpeVocabulary::Symbols::kBytes) {
        ByteSymbols(piece);
      } else {
        CharacterSymbols(piece);
      }
      Merge(owner_.table_, &symbols, &scratch_.merging);
    }
    if (error_) return;
    std::copy(symbols.begin(), symbols.end(), ids_.begin() + static_cast<ptrdiff_t>(used_));
    used_ += symbols.size();
    scratch_.cache.Keep(piece, symbols);
  }

  void ByteSymbols(std::string_view piece) {
    for (const char byte : piece) {
      const int32_t id = owner_.byte_ids_[static_cast<uint8_t>(byte)];
      if (id < 0) return Refuse(fmt::format("byte 0x{:02X}", static_cast<uint8_t>(byte)));
      scratch_.symbols.push_back(id);
    }
  }

  void CharacterSymbols(std::string_view piece) {
    for (size_t at = 0; at < piece.size();) {
      const Utf8Step step = NextUtf8(piece.substr(at, 4));
      const bool character = step.kind == Utf8Kind::kCharacter;
      const char32_t code = v_.marked_spaces && step.code == kMark ? U' ' : step.code;
      const bool known = character && code < owner_.symbol_ids_.size();
      const int32_t id = known ? owner_.symbol_ids_[code] : -1;
      if (id >= 0) {
        scratch_.symbols.push_back(id);
      } else if (v_.byte_fallback) {
        for (const char byte : piece.substr(at, step.length)) {
          scratch_.symbols.push_back(owner_.byte_ids_[static_cast<uint8_t>(byte)]);
        }
      } else if (v_.unknown) {
        scratch_.symbols.push_back(*v_.unknown);
      } else {
        return Refuse(character ? "character " + CharacterName(step.code)
                                : fmt::format("byte 0x{:02X}", static_cast<uint8_t>(piece[at])));
      }
      at += step.length;
    }
  }

  void Refuse(const std::string& what) {
    if (error_) return;
    error_ = Error{ErrorKind::kRequest, place_.name, what, "text that the vocabulary can spell",
                   "it has no token for that"};
  }

  const BpeTokenizer& owner_;
  const BpeVocabulary& v_;
  Scratch& scratch_;
  const TextPlace& place_;
  std::vector<int32_t> ids_;  // the first used_ count
  size_t used_ = 0;
  std::optional<Error> error_;
};

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary) : v_(std::move(vocabulary)) {}
BpeTokenizer::~BpeTokenizer() = default;

Result<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Create(BpeVocabulary vocabulary,
                                                           const std::string& where) {
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(vocabulary)));
  HEED_TRY(tokenizer->Prepare(where));
  return tokenizer;
}

Status BpeTokenizer::Prepare(const std::string& where) {
  HEED_TRY(CheckIds(where));
  const auto first = [](const BpeMerge& a, const BpeMerge& b) {
    return std::tie(a.rank, a.left, a.right) < std::tie(b.rank, b.left, b.right);
  };
  if (!std::ranges::is_sorted(v_.merges, first)) std::ranges::sort(v_.merges, first);
  const BpeMerge* again = nullptr;
  Aside table([&] { table_ = MergeTable(v_.merges, &again); });
  TokenIndex<std::string> index(v_.tokens);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (index.Add(id)) continue;
    return Fail(
        ErrorKind::kFormat, where,
        fmt::format("token {} at {} and {}", Quoted(v_.tokens[id]), index.Find(v_.tokens[id]), id),
        "every token once");
  }
  HEED_TRY(FindByteTokens(index, where));
  FindCharacters();
  words_apart_ = WordsAreApart();
  table.Join();
  if (again != nullptr) {
    return Fail(ErrorKind::kFormat, where,
                fmt::format("merge {} of {} and {} again", again->rank + 1,
                            Quoted(v_.tokens[again->left]), Quoted(v_.tokens[again->right])),
                "every merge once");
  }
  // Without added tokens a text has one part.
  if (v_.added.empty() && v_.prefix == BpeVocabulary::Prefix::kEveryPart) {
    v_.prefix = BpeVocabulary::Prefix::kText;
  }
  if (v_.ignore_merges) index_ = std::move(index);
  added_ = v_.added;
  std::stable_sort(added_.begin(), added_.end(), [this](const AddedToken& a, const AddedToken& b) {
    return v_.tokens[a.id].size() > v_.tokens[b.id].size();
  });
  for (const AddedToken& added : added_) {
    added_begins_[static_cast<uint8_t>(v_.tokens[added.id][0])] = true;
  }
  return {};
}

Status BpeTokenizer::CheckIds(const std::string& where) const {
  const int64_t n = vocab_size();
  if (n == 0) return Fail(ErrorKind::kFormat, where, "no tokens", "a vocabulary");
  const auto inside = [n](int32_t id) { return id >= 0 && id < n; };
  for (const BpeMerge& merge : v_.merges) {
    if (inside(merge.left) && inside(merge.right) && inside(merge.result)) continue;
    return Fail(ErrorKind::kFormat, where, "a merge of ids outside the vocabulary",
                fmt::format("0 to {}", n - 1));
  }
  for (const std::optional<int32_t>& id : {v_.bos, v_.eos, v_.unknown}) {
    if (!id || inside(*id)) continue;
    return Fail(ErrorKind::kFormat, where, fmt::format("special id {}", *id),
                fmt::format("0 to {}", n - 1));
  }
  for (const AddedToken& added : v_.added) {
    if (inside(added.id) && !v_.tokens[added.id].empty()) continue;
    return Fail(ErrorKind::kFormat, where, fmt::format("added token {}", added.id),
                fmt::format("a text, and an id from 0 to {}", n - 1));
  }
  return {};
}

Status BpeTokenizer::FindByteTokens(const TokenIndex<std::string>& index,
                                    const std::string& where) {
  byte_ids_.assign(256, -1);
  const bool bytes = v_.symbols == BpeVocabulary::Symbols::kBytes;
  if (!bytes && !v_.byte_fallback) return {};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = bytes ? std::string(1, static_cast<char>(byte)) : ByteName(byte);
    byte_ids_[byte] = index.Find(name);
    if (bytes) continue;
    if (byte_ids_[byte] < 0) {
      return Fail(ErrorKind::kFormat, where, "byte fallback without " + name,
                  "the tokens <0x00> to <0xFF>");
    }
    byte_of_[byte_ids_[byte]] = static_cast<uint8_t>(byte);
  }
  return {};
}

void BpeTokenizer::FindCharacters() {
  if (v_.symbols == BpeVocabulary::Symbols::kBytes) return;
  for (size_t id = 0; id < v_.tokens.size(); ++id) {
    const std::string& token = v_.tokens[id];
    const Utf8Step step = token.empty() ? Utf8Step{} : NextUtf8(token);
    if (step.kind != Utf8Kind::kCharacter || step.length != static_cast<int>(token.size())) {
      continue;
    }
    if (step.code >= symbol_ids_.size()) symbol_ids_.resize(step.code + 1, -1);
    symbol_ids_[step.code] = static_cast<int32_t>(id);
  }
}

bool BpeTokenizer::WordsAreApart() const {
  return std::none_of(v_.merges.begin(), v_.merges.end(), [this](const BpeMerge& merge) {
    const std::string& token = v_.tokens[merge.result];
    const size_t word = token.find_first_not_of(' ');
    return word != token.npos && token.find(' ', word) != token.npos;
  });
}

std::string_view BpeTokenizer::TokenBytes(int32_t id) const {
  static constexpr auto kBytes = [] {
    std::array<char, 256> bytes{};
    for (int i = 0; i < 256; ++i) bytes[i] = static_cast<char>(i);
    return bytes;
  }();
  const auto byte = byte_of_.find(id);
  return byte == byte_of_.end() ? std::string_view(v_.tokens[id])
                                : std::string_view(&kBytes[byte->second], 1);
}

std::string_view BpeTokenizer::BytesAfter(std::optional<int32_t> previous, int32_t id) const {
  if (!previous && v_.bos == id) return {};
  const std::string_view bytes = TokenBytes(id);
  const auto is_added = [this](int32_t token) {
    return std::any_of(added_.begin(), added_.end(),
                       [token](const AddedToken& added) { return added.id == token; });
  };
  const bool prefixed =
      v_.prefix == BpeVocabulary::Prefix::kEveryPart
          ? !previous || previous == v_.bos || is_added(*previous)
          : v_.prefix == BpeVocabulary::Prefix::kText && (!previous || previous == v_.bos);
  return prefixed && bytes.starts_with(' ') ? bytes.substr(1) : bytes;
}

const AddedToken* BpeTokenizer::AddedAt(std::string_view text, size_t at) const {
  const auto found = std::find_if(added_.begin(), added_.end(), [&](const AddedToken& added) {
    return text.substr(at).starts_with(v_.tokens[added.id]);
  });
  return found == added_.end() ? nullptr : &*found;
}

bool BpeTokenizer::IsInsideAdded(std::string_view text, size_t at) const {
  return std::any_of(added_.begin(), added_.end(), [&](const AddedToken& added) {
    const std::string& token = v_.tokens[added.id];
    // A cut behind a token that takes the spaces after it would leave them.
    const size_t most = std::min(at, token.size() - !added.rstrip);
    for (size_t before = 1; before <= most; ++before) {
      if (text.substr(at - before).starts_with(token)) return true;
    }
    return false;
  });
}

Result<std::vector<int32_t>> BpeTokenizer::Encode(std::string_view text,
                                                  const TextPlace& place) const {
  const Lease lease(*this);
  Encoder encoder(*this, *lease, place);
  if (v_.nfc && !IsAscii(text)) return encoder.Run(NormalFormC(text));
  return encoder.Run(text);
}

size_t BpeTokenizer::CutAt(std::string_view text, size_t from) const {
  const bool bytes = v_.symbols == BpeVocabulary::Symbols::kBytes;
  if (bytes ? v_.split == SplitPattern::kNone : !words_apart_) return text.size();
  const auto may_cut = [&](size_t at) {
    if (bytes) return SplitsAt(text, at);
    return text[at] == ' ' && at > 0 && text[at - 1] != ' ' &&
           !text.substr(0, at).ends_with(kMarkBytes);
  };
  size_t at = from;
  while (at < text.size() && (!may_cut(at) || IsInsideAdded(text, at))) ++at;
  return std::min(at, text.size());
}

std::string BpeTokenizer::Json() const { return TokenizerJson(v_); }

std::vector<uint64_t> BpeTokenizer::Rules() const {
  std::vector<uint64_t> rules = {static_cast<uint64_t>(v_.symbols),
                                 static_cast<uint64_t>(v_.split),
                                 v_.ignore_merges,
                                 v_.nfc,
                                 v_.marked_spaces,
                                 static_cast<uint64_t>(v_.prefix),
                                 v_.collapse_spaces,
                                 v_.byte_fallback};
  for (const BpeMerge& merge : v_.merges) {
    rules.push_back(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right));
  }
  for (const AddedToken& added : v_.added) rules.push_back(static_cast<uint64_t>(added.id));
  return rules;
}

}  // namespace heed
