#include "model/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "base/quote.h"
#include "text/bpe_lists.h"
#include "text/bpe_tokenizer.h"
#include "text/byte_tokenizer.h"
#include "text/scored_pieces.h"
#include "text/utf8.h"

namespace heed {
namespace {

const char* const kJsonKey = "tokenizer.huggingface.json";
const char* const kModel = "tokenizer.ggml.model";
const char* const kPre = "tokenizer.ggml.pre";
const char* const kTokens = "tokenizer.ggml.tokens";
const char* const kScores = "tokenizer.ggml.scores";
const char* const kTypes = "tokenizer.ggml.token_type";
const char* const kMerges = "tokenizer.ggml.merges";
const char* const kBos = "tokenizer.ggml.bos_token_id";
const char* const kEos = "tokenizer.ggml.eos_token_id";
const char* const kAddBos = "tokenizer.ggml.add_bos_token";
const char* const kAddPrefix = "tokenizer.ggml.add_space_prefix";

// llama.cpp's names for the patterns by which text is cut; the first of a pattern is written.
struct PreName {
  std::string_view name;
  SplitPattern pattern;
};
constexpr PreName kPreNames[] = {{"gpt-2", SplitPattern::kGpt2},
                                 {"llama-bpe", SplitPattern::kCl100k},
                                 {"llama3", SplitPattern::kCl100k},
                                 {"qwen2", SplitPattern::kQwen2}};

using Metadata = std::vector<std::pair<std::string, GgufValue>>;

constexpr int64_t Number(PieceKind kind) { return static_cast<int64_t>(kind); }

// The token as GPT-2's byte alphabet spells it.
std::string Spelling(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) AppendUtf8(ByteSymbol(static_cast<uint8_t>(byte)), &spelling);
  return spelling;
}

// The merges that put a token together from its bytes, from the left.
void AddMerges(std::string_view bytes, std::set<std::string>* merges) {
  for (size_t n = 1; n < bytes.size(); ++n) {
    merges->insert(Spelling(bytes.substr(0, n)) + " " + Spelling(bytes.substr(n, 1)));
  }
}

// Where other programs stop: llama.cpp takes token 11 where none is named, whatever that is. A row
// behind the vocabulary when there is one, else the line's end, else the last token.
int64_t EndToken(const Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokenizer.vocab_size() < vocab_size) return vocab_size - 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.TokenBytes(id) == "\n") return id;
  }
  return vocab_size - 1;
}

tl::unexpected<Error> Bad(const GgufFile& file, const char* key, std::string found,
                          std::string expected) {
  return Fail(ErrorKind::kFormat, file.where() + ": " + key, std::move(found), std::move(expected));
}

// The lists of a vocabulary; kinds are as many as tokens, all normal where the file has none.
struct Lists {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> kinds;
};

Result<Lists> ReadLists(const GgufFile& file) {
  Lists lists;
  HEED_TRY(file.Get(kTokens, &lists.tokens));
  if (lists.tokens.empty()) return Bad(file, kTokens, "none", "a vocabulary");
  lists.kinds.assign(lists.tokens.size(), Number(PieceKind::kNormal));
  HEED_TRY(file.Get(kTypes, &lists.kinds));
  if (lists.kinds.size() != lists.tokens.size()) {
    return Bad(file, kTypes, fmt::format("{} kinds", lists.kinds.size()),
               fmt::format("{}, one for each token", lists.tokens.size()));
  }
  for (const int64_t kind : lists.kinds) {
    if (kind < Number(PieceKind::kNormal) || kind > Number(PieceKind::kByte)) {
      return Bad(file, kTypes, fmt::format("the kind {}", kind), "1 to 6");
    }
  }
  return lists;
}

// The start token only where it is put before texts.
Status ReadSpecial(const GgufFile& file, bool add_bos, BpeVocabulary* vocabulary) {
  const auto read = [&](const char* key, std::optional<int32_t>* token) -> Status {
    if (!file.Has(key)) return {};
    int64_t id = 0;
    HEED_TRY(file.Get(key, &id));
    if (id < 0 || id >= static_cast<int64_t>(vocabulary->tokens.size())) {
      return Bad(file, key, fmt::format("{}", id), "an id of the vocabulary");
    }
    *token = static_cast<int32_t>(id);
    return {};
  };
  HEED_TRY(file.Get(kAddBos, &add_bos));
  if (add_bos) HEED_TRY(read(kBos, &vocabulary->bos));
  return read(kEos, &vocabulary->eos);
}

Result<BpeVocabulary> ReadPieces(const GgufFile& file) {
  HEED_ASSIGN(const Lists lists, ReadLists(file));
  std::vector<double> scores;
  HEED_TRY(file.Get(kScores, &scores));
  if (scores.size() != lists.tokens.size()) {
    return Bad(file, kScores, fmt::format("{} scores", scores.size()),
               fmt::format("{}, one for each token", lists.tokens.size()));
  }
  std::vector<ScoredPiece> pieces;
  for (size_t id = 0; id < scores.size(); ++id) {
    pieces.push_back({std::string(lists.tokens[id]), static_cast<float>(scores[id]),
                      static_cast<PieceKind>(lists.kinds[id])});
  }
  HEED_ASSIGN(BpeVocabulary vocabulary, VocabularyFromScores(pieces, file.where()));
  bool prefix = true;
  HEED_TRY(file.Get(kAddPrefix, &prefix));
  if (prefix) vocabulary.prefix = BpeVocabulary::Prefix::kText;
  HEED_TRY(ReadSpecial(file, /*add_bos=*/true, &vocabulary));
  return vocabulary;
}

Result<std::vector<BpeMerge>> ReadMerges(const GgufFile& file,
                                         std::span<const std::string_view> tokens) {
  std::vector<std::string_view> lines;
  HEED_TRY(file.Get(kMerges, &lines));
  std::vector<std::pair<std::string_view, std::string_view>> pairs(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (SplitMerge(lines[i], &pairs[i])) continue;
    return Bad(file, kMerges, Quoted(lines[i]), "two tokens and a space");
  }
  return MergesOf(pairs, tokens, file.where() + ": " + kMerges);
}

Result<BpeVocabulary> ReadByteLevel(const GgufFile& file) {
  std::string pre = "gpt-2";
  HEED_TRY(file.Get(kPre, &pre));
  const auto found = std::ranges::find(kPreNames, pre, &PreName::name);
  if (found == std::end(kPreNames)) {
    return Bad(file, kPre, Quoted(pre), "gpt-2, llama-bpe, llama3 or qwen2");
  }
  HEED_ASSIGN(const Lists lists, ReadLists(file));
  BpeVocabulary vocabulary;
  vocabulary.split = found->pattern;
  vocabulary.ignore_merges = found->pattern == SplitPattern::kCl100k;
  for (size_t id = 0; id < lists.tokens.size(); ++id) {
    const std::string_view token = lists.tokens[id];
    if (lists.kinds[id] == Number(PieceKind::kControl) ||
        lists.kinds[id] == Number(PieceKind::kUserDefined)) {
      vocabulary.added.push_back(
          {static_cast<int32_t>(id), lists.kinds[id] == Number(PieceKind::kControl)});
      vocabulary.tokens.emplace_back(token);
      continue;
    }
    // What pads a vocabulary need not be spelled in bytes.
    vocabulary.tokens.push_back(UnspellBytes(token).value_or(std::string(token)));
  }
  HEED_ASSIGN(vocabulary.merges, ReadMerges(file, lists.tokens));
  HEED_TRY(ReadSpecial(file, /*add_bos=*/false, &vocabulary));
  return vocabulary;
}

// Tokens of a vocabulary without merges, and fabricated merges that spell its characters.
void PutCharacters(const Tokenizer& tokenizer, int64_t vocab_size, Metadata* metadata) {
  std::vector<std::string> tokens;
  std::set<std::string> merges;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back(Spelling(tokenizer.TokenBytes(id)));
    AddMerges(tokenizer.TokenBytes(id), &merges);
  }
  const int64_t end = EndToken(tokenizer, vocab_size);
  metadata->insert(
      metadata->end(),
      {{kModel, std::string("gpt2")},
       {kPre, std::string("gpt-2")},
       {kTokens, std::move(tokens)},
       {kTypes, std::vector<int64_t>(tokenizer.vocab_size(), Number(PieceKind::kNormal))},
       {kMerges, std::vector<std::string>(merges.begin(), merges.end())},
       {kBos, end},
       {kEos, end},
       {kAddBos, false}});
}

void PutByteLevel(const BpeVocabulary& v, Metadata* metadata) {
  std::vector<std::string> tokens, merges(v.merges.size());
  std::vector<int64_t> kinds(v.tokens.size(), Number(PieceKind::kNormal));
  for (const std::string& token : v.tokens) tokens.push_back(Spelling(token));
  for (const AddedToken& added : v.added) {
    tokens[added.id] = v.tokens[added.id];
    kinds[added.id] = Number(added.special ? PieceKind::kControl : PieceKind::kUserDefined);
  }
  std::vector<BpeMerge> ordered = v.merges;
  std::ranges::stable_sort(ordered, {}, &BpeMerge::rank);
  for (size_t i = 0; i < ordered.size(); ++i) {
    merges[i] = Spelling(v.tokens[ordered[i].left]) + " " + Spelling(v.tokens[ordered[i].right]);
  }
  const auto pre = std::ranges::find(kPreNames, v.split, &PreName::pattern);
  metadata->insert(metadata->end(),
                   {{kModel, std::string("gpt2")},
                    {kPre, std::string(pre == std::end(kPreNames) ? "gpt-2" : pre->name)},
                    {kTokens, std::move(tokens)},
                    {kTypes, std::move(kinds)},
                    {kMerges, std::move(merges)}});
}

void PutPieces(const BpeVocabulary& v, Metadata* metadata) {
  std::vector<std::string> tokens;
  std::vector<double> scores;
  std::vector<int64_t> kinds;
  for (const ScoredPiece& piece : PiecesOf(v)) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    kinds.push_back(Number(piece.kind));
  }
  metadata->insert(metadata->end(), {{kModel, std::string("llama")},
                                     {kTokens, std::move(tokens)},
                                     {kScores, std::move(scores)},
                                     {kTypes, std::move(kinds)},
                                     {kAddPrefix, v.prefix != BpeVocabulary::Prefix::kNone}});
}

// Rows behind the vocabulary, in every list of the metadata that has one entry for each token.
void PadLists(size_t from, int64_t to, Metadata* metadata) {
  for (auto& [key, value] : *metadata) {
    for (int64_t id = static_cast<int64_t>(from); id < to; ++id) {
      if (key == kTokens)
        std::get<std::vector<std::string>>(value).push_back(fmt::format("[PAD{}]", id));
      if (key == kTypes)
        std::get<std::vector<int64_t>>(value).push_back(Number(PieceKind::kUnused));
      if (key == kScores) std::get<std::vector<double>>(value).push_back(0);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> GgufVocabulary(const GgufFile& file) {
  std::string_view json;
  std::string model;
  HEED_TRY(file.Get(kJsonKey, &json));
  if (!json.empty()) return ParseTokenizerJson(json, file.where() + ": " + kJsonKey);
  HEED_TRY(file.Get(kModel, &model));
  if (model != "llama" && model != "gpt2") {
    return Bad(file, kModel, model.empty() ? "nothing" : Quoted(model), "llama or gpt2");
  }
  HEED_ASSIGN(BpeVocabulary vocabulary, model == "llama" ? ReadPieces(file) : ReadByteLevel(file));
  HEED_ASSIGN(auto tokenizer, BpeTokenizer::Create(std::move(vocabulary), file.where()));
  return tokenizer;
}

void PutGgufVocabulary(const Tokenizer* tokenizer, int64_t vocab_size, Metadata* metadata) {
  if (tokenizer == nullptr) {
    metadata->emplace_back(kModel, std::string("no_vocab"));
    return;
  }
  const auto* bpe = dynamic_cast<const BpeTokenizer*>(tokenizer);
  if (bpe == nullptr) {
    PutCharacters(*tokenizer, vocab_size, metadata);
  } else if (bpe->vocabulary().symbols == BpeVocabulary::Symbols::kBytes) {
    PutByteLevel(bpe->vocabulary(), metadata);
  } else {
    PutPieces(bpe->vocabulary(), metadata);
  }
  if (bpe != nullptr) {
    metadata->emplace_back(kAddBos, bpe->bos().has_value());
    if (bpe->bos()) metadata->emplace_back(kBos, int64_t{*bpe->bos()});
    if (bpe->eos()) metadata->emplace_back(kEos, int64_t{*bpe->eos()});
  }
  PadLists(static_cast<size_t>(tokenizer->vocab_size()), vocab_size, metadata);
  metadata->emplace_back(kJsonKey, tokenizer->Json());
}

}  // namespace heed
