#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "text/bpe_lists.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Prefix = BpeVocabulary::Prefix;
using Symbols = BpeVocabulary::Symbols;

constexpr const char* kMark = "\u2581";
// The two steps that together make SentencePiece's remove_extra_whitespaces.
constexpr const char* kOuterSpaces = "^ +| +$";
constexpr const char* kSpaceRuns = " +";

// --- Writing

std::string Spelled(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(ByteSymbol(static_cast<uint8_t>(byte)), &text);
  return text;
}

std::string Marked(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == ' ' ? kMark : std::string(1, c);
  return out;
}

OrderedJson ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson Replace(const char* kind, const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
}

// The members around `vocab` and `merges`.
struct Parts {
  OrderedJson added = OrderedJson::array();
  OrderedJson normalizer, pre_tokenizer, post_processor, decoder, unknown;
  OrderedJson vocab = OrderedJson::object(), merges = OrderedJson::array();
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;

  void AddToken(std::string spelled, size_t id) {
    // Appended to the list below the object: its own insertion searches all keys.
    vocab.get_ref<OrderedJson::object_t&>().emplace_back(std::move(spelled), id);
  }

  std::string Text() const {
    const OrderedJson json = {{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", added},
                              {"normalizer", normalizer},
                              {"pre_tokenizer", pre_tokenizer},
                              {"post_processor", post_processor},
                              {"decoder", decoder},
                              {"model",
                               {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", unknown},
                                {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr},
                                {"fuse_unk", fuse_unknown},
                                {"byte_fallback", byte_fallback},
                                {"ignore_merges", ignore_merges},
                                {"vocab", vocab},
                                {"merges", merges}}}};
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }
};

OrderedJson Sequence(const char* member, const std::vector<OrderedJson>& steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {member, steps}};
}

// Prepend puts a space before every part and where one stands already; Metaspace can do with the
// first part alone, and never doubles a space.
bool IsMetaspace(const BpeVocabulary& v) {
  return v.prefix_once || (v.prefix == Prefix::kText && !v.added.empty());
}

std::vector<OrderedJson> Normalizers(const BpeVocabulary& v) {
  std::vector<OrderedJson> steps;
  if (v.nfc) steps.push_back({{"type", "NFC"}});
  if (v.symbols == Symbols::kBytes) return steps;
  if (v.collapse_spaces) {
    steps.push_back(Replace("Regex", kOuterSpaces, ""));
    steps.push_back(Replace("Regex", kSpaceRuns, " "));
  }
  if (IsMetaspace(v)) return steps;
  if (v.prefix != Prefix::kNone) steps.push_back({{"type", "Prepend"}, {"prepend", kMark}});
  if (v.marked_spaces) steps.push_back(Replace("String", " ", kMark));
  return steps;
}

std::vector<OrderedJson> PreTokenizers(const BpeVocabulary& v) {
  if (v.symbols == Symbols::kCharacters) {
    if (!IsMetaspace(v)) return {};
    return {{{"type", "Metaspace"},
             {"replacement", kMark},
             {"prepend_scheme", v.prefix == Prefix::kText ? "first" : "always"},
             {"split", false}}};
  }
  if (v.split == SplitPattern::kGpt2) return {ByteLevel(true)};
  if (v.split == SplitPattern::kNone) return {ByteLevel(false)};
  return {{{"type", "Split"},
           {"pattern", {{"Regex", RegexOf(v.split)}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          ByteLevel(false)};
}

std::vector<OrderedJson> Decoders(const BpeVocabulary& v) {
  if (v.symbols == Symbols::kBytes) return {ByteLevel(true)};
  std::vector<OrderedJson> steps;
  if (v.marked_spaces) steps.push_back(Replace("String", kMark, " "));
  if (v.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  // Without Fuse, Hugging Face puts a space between tokens.
  steps.push_back({{"type", "Fuse"}});
  if (v.prefix != Prefix::kNone) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return steps;
}

OrderedJson Template(const std::string& start, int32_t id) {
  const OrderedJson special = {{"SpecialToken", {{"id", start}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return OrderedJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {special, sequence("A", 0)}},
          {"pair", {special, sequence("A", 0), special, sequence("B", 1)}},
          {"special_tokens",
           {{start,
             {{"id", start},
              {"ids", OrderedJson::array({id})},
              {"tokens", OrderedJson::array({start})}}}}}};
}

// --- Reading

const Json& Member(const Json& object, const char* key) {
  static const Json nothing;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nothing : *found;
}

std::string_view ViewOf(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>()) : "";
}
std::string TextOf(const Json& value) { return std::string(ViewOf(value)); }
std::string TypeOf(const Json& object) { return TextOf(Member(object, "type")); }
bool IsTrue(const Json& object, const char* key) { return Member(object, key) == Json(true); }

bool IsNothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") || value == Json(0.0) ||
         (value.is_structured() && value.empty());
}

std::string Shown(const Json& value) {
  const std::string type = TypeOf(value);
  if (!type.empty()) return type;
  return Quoted(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

Status RefuseSettings(const Json& object, std::initializer_list<const char*> keys,
                      const std::string& where) {
  for (const char* key : keys) {
    if (IsNothing(Member(object, key))) continue;
    return Fail(ErrorKind::kFormat, where + ": " + key, Shown(Member(object, key)), "none",
                "vocabularies with this setting are not read");
  }
  return {};
}

// The steps of a part that may be nothing, one step, or a Sequence of them under `member`.
std::vector<const Json*> Steps(const Json& part, const char* member) {
  if (part.is_null()) return {};
  if (TypeOf(part) != "Sequence") return {&part};
  std::vector<const Json*> steps;
  for (const Json& step : Member(part, member)) steps.push_back(&step);
  return steps;
}

// Reads one tokenizer.json, part by part, into a BpeVocabulary.
class Reader {
 public:
  // With `lists`, these stand in for model.vocab and model.merges, which are empty.
  Reader(const Json& json, const std::string& where, const BpeLists* lists = nullptr)
      : json_(json), model_(Member(json, "model")), where_(where), lists_(lists) {}

  Result<std::unique_ptr<Tokenizer>> Read() {
    if (TypeOf(model_) != "BPE") {
      return Fail(ErrorKind::kFormat, where_ + ": model.type",
                  TypeOf(model_).empty() ? "none" : Printable(TypeOf(model_)), "BPE");
    }
    if (!Member(model_, "merges").is_array()) {
      return Fail(ErrorKind::kFormat, where_ + ": model.merges",
                  Member(model_, "merges").type_name(), "a list");
    }
    HEED_TRY(RefuseSettings(json_, {"truncation", "padding"}, where_));
    HEED_TRY(RefuseSettings(model_, {"continuing_subword_prefix", "end_of_word_suffix", "dropout"},
                            where_ + ": model"));
    HEED_TRY(ReadNormalizer());
    HEED_TRY(ReadPreTokenizer());
    HEED_TRY(ReadTokens());
    HEED_TRY(ReadDecoder());
    if (IsPlain()) {
      if (v_.symbols == Symbols::kCharacters) return CharVocabulary();
      if (IsTheBytes()) return std::make_unique<ByteTokenizer>();
    }
    HEED_TRY(ReadPostProcessor());
    HEED_TRY(ReadModel());
    return BpeTokenizer::Create(std::move(v_), where_);
  }

 private:
  tl::unexpected<Error> Bad(const char* part, std::string found, std::string expected) const {
    return Fail(ErrorKind::kFormat, where_ + ": " + part, std::move(found), std::move(expected));
  }

  Status ReadNormalizer() {
    for (const Json* step : Steps(Member(json_, "normalizer"), "normalizers")) {
      const std::string type = TypeOf(*step);
      const Json& pattern = Member(*step, "pattern");
      const std::string regex = TextOf(Member(pattern, "Regex"));
      const std::string content = TextOf(Member(*step, "content"));
      if (type == "NFC") {
        v_.nfc = true;
      } else if (type == "Prepend" && Member(*step, "prepend") == Json(kMark)) {
        v_.prefix = Prefix::kEveryPart;
      } else if (type == "Replace" && Member(pattern, "String") == Json(" ") && content == kMark) {
        v_.marked_spaces = true;
      } else if (type == "Replace" && regex == kOuterSpaces && content.empty()) {
        outer_spaces_ = true;
      } else if (type == "Replace" && regex == kSpaceRuns && content == " ") {
        v_.collapse_spaces = true;
      } else {
        return Bad("normalizer", Shown(*step),
                   fmt::format("NFC, Prepend {}, Replace ' ' by {}", kMark, kMark));
      }
    }
    if (v_.prefix != Prefix::kNone && !v_.marked_spaces) {
      return Bad("normalizer", "Prepend alone", fmt::format("Replace ' ' by {} behind it", kMark));
    }
    const bool half = v_.collapse_spaces != outer_spaces_;
    if (half) return Bad("normalizer", "half of what removes extra spaces", "both steps");
    return {};
  }

  Status ReadPreTokenizer() {
    v_.symbols = Symbols::kCharacters;
    for (const Json* step : Steps(Member(json_, "pre_tokenizer"), "pretokenizers")) {
      const std::string type = TypeOf(*step);
      if (type == "ByteLevel") {
        HEED_TRY(RefuseSettings(*step, {"add_prefix_space"}, where_ + ": pre_tokenizer"));
        v_.symbols = Symbols::kBytes;
        // Absent, it is on.
        const bool regex = Member(*step, "use_regex") != Json(false);
        if (regex && split_given_) return Bad("pre_tokenizer", "two patterns", "one");
        if (!split_given_) v_.split = regex ? SplitPattern::kGpt2 : SplitPattern::kNone;
      } else if (type == "Split" && Member(*step, "behavior") == Json("Isolated") &&
                 !IsTrue(*step, "invert") && v_.symbols == Symbols::kCharacters && !split_given_) {
        split_given_ = true;
        regex_ = TextOf(Member(Member(*step, "pattern"), "Regex"));
        if (const auto pattern = PatternOf(regex_)) {
          v_.split = *pattern;
          regex_.clear();
        }
      } else if (type == "Metaspace") {
        HEED_TRY(ReadMetaspace(*step));
      } else {
        return Bad("pre_tokenizer", Shown(*step),
                   "none, an isolating Split, ByteLevel or Metaspace");
      }
    }
    const bool bytes = v_.symbols == Symbols::kBytes;
    const bool merges = HasMerges();
    // Where nothing merges it does not matter how text is cut.
    if (merges && split_given_ && (!bytes || !regex_.empty())) {
      return Bad("pre_tokenizer",
                 regex_.empty() ? "a Split of characters" : "the unknown pattern " + Quoted(regex_),
                 "the pattern of GPT-2, cl100k (Llama 3) or Qwen2, over bytes");
    }
    if (bytes && (v_.marked_spaces || v_.collapse_spaces)) {
      return Bad("pre_tokenizer", "ByteLevel beside what marks spaces", "one of them");
    }
    if (!regex_.empty()) v_.split = SplitPattern::kNone;
    if (!bytes) v_.split = SplitPattern::kGpt2;
    return {};
  }

  Status ReadMetaspace(const Json& step) {
    const Json& scheme = Member(step, "prepend_scheme");
    // Before there were schemes, add_prefix_space was "always", and on when absent.
    const std::string name = scheme.is_string()                                ? TextOf(scheme)
                             : Member(step, "add_prefix_space") == Json(false) ? "never"
                                                                               : "always";
    if (Member(step, "replacement") != Json(kMark) ||
        (name != "first" && name != "always" && name != "never")) {
      return Bad("pre_tokenizer", "another Metaspace",
                 fmt::format("{}, and a prepend_scheme first, always or never", kMark));
    }
    v_.marked_spaces = true;
    v_.prefix_once = name != "never";
    v_.prefix = name == "first"    ? Prefix::kText
                : name == "always" ? Prefix::kEveryPart
                                   : Prefix::kNone;
    words_cut_ = Member(step, "split") != Json(false);
    return {};
  }

  // tokens_[id] as they are spelled, v_.tokens[id] as bytes.
  Status ReadTokens() {
    const Json& vocab = Member(model_, "vocab");
    const std::string where = where_ + ": model.vocab";
    if (!vocab.is_object() || (vocab.empty() && lists_ == nullptr)) {
      return Fail(ErrorKind::kFormat, where, vocab.is_object() ? "no tokens" : vocab.type_name(),
                  "an object from token to id");
    }
    HEED_TRY(ReadAdded());
    std::set<std::string_view> known;  // added tokens that `vocab` has, too
    for (const auto& [id, content] : added_) {
      if (vocab.contains(content)) known.insert(content);
    }
    if (lists_ != nullptr) known = KnownToLists();
    const auto beyond = static_cast<size_t>(std::ranges::count_if(
        added_, [&](const auto& added) { return !known.contains(added.second); }));
    tokens_.resize((lists_ == nullptr ? vocab.size() : lists_->vocab.size()) + beyond);
    std::vector<bool> taken(tokens_.size());
    const auto take = [&](std::string_view token, uint64_t id) -> Status {
      if (taken[id]) {
        return Fail(ErrorKind::kFormat, where, fmt::format("id {} twice", id), "every id once");
      }
      taken[id] = true;
      tokens_[id] = token;
      return {};
    };
    for (const auto& [token, value] : vocab.items()) {
      HEED_ASSIGN(const uint64_t id, IdOf(value, token, where));
      HEED_TRY(take(token, id));
    }
    for (size_t i = 0; lists_ != nullptr && i < lists_->vocab.size(); ++i) {
      const auto& [token, id] = lists_->vocab[i];
      if (id >= tokens_.size()) return IdOf(Json(id), token, where).map([](uint64_t) {});
      HEED_TRY(take(token, id));
    }
    for (const auto& [value, content] : added_) {
      HEED_ASSIGN(const uint64_t id, IdOf(value, content, where_ + ": added_tokens"));
      if (!known.contains(content)) HEED_TRY(take(content, id));
      if (tokens_[id] != content) {
        return Bad("added_tokens", fmt::format("id {} for {}", id, Quoted(content)),
                   "the id that the vocabulary has for it");
      }
    }
    return ReadBytes();
  }

  std::set<std::string_view> KnownToLists() const {
    std::set<std::string_view> added, known;
    for (const auto& [id, content] : added_) added.insert(content);
    if (added.empty()) return known;
    for (const auto& [token, id] : lists_->vocab) {
      if (added.contains(token)) known.insert(token);
    }
    return known;
  }

  bool HasMerges() const {
    return lists_ != nullptr ? !lists_->merges.empty() : !Member(model_, "merges").empty();
  }

  Result<uint64_t> IdOf(const Json& value, std::string_view token, const std::string& where) const {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < tokens_.size();
    if (fits) return value.get<uint64_t>();
    return Fail(ErrorKind::kFormat, where,
                fmt::format("id {} of token '{}'",
                            value.is_number() ? value.dump() : value.type_name(), Printable(token)),
                fmt::format("each of 0 to {} once", tokens_.size() - 1));
  }

  Status ReadAdded() {
    const Json& list = Member(json_, "added_tokens");
    if (!list.is_null() && !list.is_array()) return Bad("added_tokens", "no list", "a list");
    for (const Json& token : list) {
      const std::string content = TextOf(Member(token, "content"));
      if (content.empty()) return Bad("added_tokens", "a token without content", "a text");
      if (IsTrue(token, "single_word")) {
        return Bad("added_tokens", "single_word of " + Quoted(content), "false");
      }
      added_.emplace_back(Member(token, "id"), content);
      AddedToken added;
      added.special = IsTrue(token, "special");
      added.lstrip = IsTrue(token, "lstrip");
      added.rstrip = IsTrue(token, "rstrip");
      v_.added.push_back(added);
    }
    return {};
  }

  Status ReadBytes() {
    std::vector<bool> literal(tokens_.size());
    for (size_t i = 0; i < added_.size(); ++i) {
      v_.added[i].id = added_[i].first.get<int32_t>();
      literal[v_.added[i].id] = true;
    }
    v_.tokens.reserve(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (literal[id]) {
        v_.tokens.emplace_back(tokens_[id]);
        continue;
      }
      HEED_ASSIGN(std::string bytes, BytesOf(tokens_[id]));
      v_.tokens.push_back(std::move(bytes));
    }
    return {};
  }

  Result<std::string> BytesOf(std::string_view spelled) const {
    if (v_.symbols == Symbols::kBytes) {
      auto bytes = UnspellBytes(spelled);
      if (bytes) return std::move(*bytes);
      return Bad("model.vocab", fmt::format("token '{}'", Printable(spelled)),
                 "GPT-2's symbols for bytes");
    }
    std::string text(spelled);
    if (!v_.marked_spaces) return text;
    for (size_t at = 0; (at = text.find(kMark, at)) != text.npos;) {
      text.replace(at, std::string_view(kMark).size(), " ");
    }
    return text;
  }

  // Nothing but tokens: a vocabulary of characters or bytes.
  bool IsPlain() const {
    return !HasMerges() && v_.added.empty() && !v_.nfc && !v_.marked_spaces &&
           v_.prefix == Prefix::kNone && IsNothing(Member(model_, "unk_token")) &&
           IsNothing(Member(model_, "byte_fallback")) && IsNoTemplate();
  }
  bool IsNoTemplate() const {
    const std::string type = TypeOf(Member(json_, "post_processor"));
    return type.empty() || type == "ByteLevel";
  }

  bool IsTheBytes() const {
    if (v_.tokens.size() != 256) return false;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (v_.tokens[byte] != std::string(1, static_cast<char>(byte))) return false;
    }
    return true;
  }

  Result<std::unique_ptr<Tokenizer>> CharVocabulary() const {
    std::vector<char32_t> characters;
    for (const std::string_view token : tokens_) {
      const Utf8Step step = token.empty() ? Utf8Step{} : NextUtf8(token);
      if (step.kind != Utf8Kind::kCharacter || step.length != static_cast<int>(token.size())) {
        return Bad("model.vocab", fmt::format("token '{}'", Printable(token)),
                   "one character per token where there are no merges");
      }
      characters.push_back(step.code);
    }
    return std::make_unique<CharTokenizer>(characters);
  }

  Status ReadDecoder() {
    const bool bytes = v_.symbols == Symbols::kBytes;
    static constexpr std::string_view kKnown[] = {"Replace", "ByteFallback", "Fuse", "Strip",
                                                  "Metaspace"};
    for (const Json* step : Steps(Member(json_, "decoder"), "decoders")) {
      const std::string type = TypeOf(*step);
      const bool known =
          bytes ? type == "ByteLevel"
                : std::find(std::begin(kKnown), std::end(kKnown), type) != std::end(kKnown);
      if (!known) {
        return Bad("decoder", Shown(*step),
                   bytes ? "ByteLevel" : "Fuse, ByteFallback, Strip, Replace or Metaspace");
      }
    }
    return {};
  }

  Status ReadPostProcessor() {
    for (const Json* step : Steps(Member(json_, "post_processor"), "processors")) {
      const std::string type = TypeOf(*step);
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing") {
        return Bad("post_processor", Shown(*step), "none, ByteLevel or TemplateProcessing");
      }
      HEED_TRY(ReadTemplate(Member(*step, "single")));
    }
    return {};
  }

  // "<s> A" or "<s> A </s>".
  Status ReadTemplate(const Json& single) {
    bool behind = false;
    for (const Json& part : single) {
      if (!Member(part, "Sequence").is_null()) {
        behind = true;
        continue;
      }
      const std::string name = TextOf(Member(Member(part, "SpecialToken"), "id"));
      const std::optional<int32_t> id = IdOfName(name);
      std::optional<int32_t>& place = behind ? v_.eos : v_.bos;
      if (!id || place) {
        return Bad("post_processor", id ? "two special tokens in a row" : "token " + Quoted(name),
                   "a token of the vocabulary before the text, and one behind it");
      }
      place = id;
    }
    if (!behind) return Bad("post_processor", "a template without the text", "the sequence A");
    return {};
  }

  std::optional<int32_t> IdOfName(const std::string& name) const {
    const auto found = std::find(tokens_.begin(), tokens_.end(), name);
    if (found == tokens_.end()) return std::nullopt;
    return static_cast<int32_t>(found - tokens_.begin());
  }

  Status ReadModel() {
    v_.ignore_merges = IsTrue(model_, "ignore_merges");
    v_.byte_fallback = IsTrue(model_, "byte_fallback");
    v_.fuse_unknown = IsTrue(model_, "fuse_unk");
    if (v_.byte_fallback && v_.symbols == Symbols::kBytes) {
      return Bad("model.byte_fallback", "true over bytes", "false");
    }
    const std::string unknown = TextOf(Member(model_, "unk_token"));
    if (!unknown.empty() && !(v_.unknown = IdOfName(unknown))) {
      return Bad("model.unk_token", Quoted(unknown), "a token of the vocabulary");
    }
    HEED_TRY(ReadMerges());
    if (!v_.eos) v_.eos = EndOfText();
    if (!words_cut_) return {};
    for (const BpeMerge& merge : v_.merges) {
      if (v_.tokens[merge.result].find(' ', 1) == std::string::npos) continue;
      return Bad("pre_tokenizer", "a Metaspace that cuts where merges join", "split: false");
    }
    return {};
  }

  Status ReadMerges() {
    std::vector<std::pair<std::string_view, std::string_view>> pairs;
    for (const Json& merge : Member(model_, "merges")) {
      auto& [left, right] = pairs.emplace_back();
      if (merge.is_string()) {
        SplitMerge(ViewOf(merge), &pairs.back());
      } else if (merge.is_array() && merge.size() == 2) {
        left = ViewOf(merge[0]);
        right = ViewOf(merge[1]);
      }
      if (left.empty() || right.empty()) {
        return Bad("model.merges", fmt::format("merge {}: {}", pairs.size(), Shown(merge)),
                   "two tokens");
      }
    }
    HEED_ASSIGN(v_.merges, MergesOf(lists_ != nullptr ? lists_->merges : pairs, tokens_,
                                    where_ + ": model.merges"));
    return {};
  }

  // By the names that published vocabularies have for it: the file does not say.
  std::optional<int32_t> EndOfText() const {
    for (const char* name : {"</s>", "<|endoftext|>", "<|end_of_text|>"}) {
      const std::optional<int32_t> id = IdOfName(name);
      const bool merged = std::any_of(v_.merges.begin(), v_.merges.end(),
                                      [&](const BpeMerge& merge) { return merge.result == id; });
      if (id && !merged) return id;
    }
    return std::nullopt;
  }

  const Json& json_;
  const Json& model_;
  const std::string& where_;
  const BpeLists* lists_;
  BpeVocabulary v_;
  std::vector<std::string_view> tokens_;             // [id]: spelled
  std::vector<std::pair<Json, std::string>> added_;  // id and content
  std::string regex_;                                // of a Split that is not known
  bool split_given_ = false;                         // a Split came first
  bool words_cut_ = false;                           // a Metaspace cuts before every space
  bool outer_spaces_ = false;
};

}  // namespace

std::string TokenizerJsonWithoutMerges(std::span<const std::string> tokens, bool byte_level) {
  Parts parts;
  for (size_t id = 0; id < tokens.size(); ++id) parts.AddToken(tokens[id], id);
  // use_regex off: no word boundaries are needed where nothing merges.
  if (byte_level) parts.pre_tokenizer = ByteLevel(false);
  parts.decoder = byte_level ? ByteLevel(false) : OrderedJson{{"type", "Fuse"}};
  return parts.Text();
}

std::string TokenizerJson(const BpeVocabulary& v) {
  std::vector<bool> literal(v.tokens.size());
  for (const AddedToken& added : v.added) literal[added.id] = true;
  const auto spelled = [&](int32_t id) {
    const std::string& token = v.tokens[id];
    if (literal[id]) return token;
    if (v.symbols == Symbols::kBytes) return Spelled(token);
    return v.marked_spaces ? Marked(token) : token;
  };
  Parts parts;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    parts.AddToken(spelled(static_cast<int32_t>(id)), id);
  }
  for (const BpeMerge& merge : v.merges) {
    parts.merges.push_back({spelled(merge.left), spelled(merge.right)});
  }
  for (const AddedToken& added : v.added) {
    parts.added.push_back({{"id", added.id},
                           {"content", v.tokens[added.id]},
                           {"single_word", false},
                           {"lstrip", added.lstrip},
                           {"rstrip", added.rstrip},
                           {"normalized", false},
                           {"special", added.special}});
  }
  parts.normalizer = Sequence("normalizers", Normalizers(v));
  parts.pre_tokenizer = Sequence("pretokenizers", PreTokenizers(v));
  parts.decoder = Sequence("decoders", Decoders(v));
  if (v.bos) parts.post_processor = Template(spelled(*v.bos), *v.bos);
  if (v.unknown) parts.unknown = spelled(*v.unknown);
  parts.fuse_unknown = v.fuse_unknown;
  parts.byte_fallback = v.byte_fallback;
  parts.ignore_merges = v.ignore_merges;
  return parts.Text();
}

Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                      const std::string& where) {
  BpeLists lists;
  std::string rest;
  if (CutOutLists(text, &lists, &rest)) {
    const Result<Json> json = ParseJsonObject(rest, where);
    Result<std::unique_ptr<Tokenizer>> read =
        json ? Reader(*json, where, &lists).Read() : tl::make_unexpected(json.error());
    if (read) return read;
  }
  HEED_ASSIGN(const Json json, ParseJsonObject(text, where));
  return Reader(json, where).Read();
}

namespace {

// The lines of a merges.txt, or of a vocab.bpe, without its version.
std::vector<std::string_view> MergeLines(std::string_view merges) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < merges.size();) {
    const size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line = merges.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool version = at == 0 && line.starts_with("#version");
    if (!line.empty() && !version) lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

Json Gpt2Json(Json vocab, Json merges) {
  return {{"pre_tokenizer", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}}}};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ParseGpt2Files(std::string_view vocab, std::string_view merges,
                                                  const std::string& vocab_where,
                                                  const std::string& merges_where) {
  const std::vector<std::string_view> lines = MergeLines(merges);
  BpeLists lists;
  lists.merges.resize(lines.size());
  bool listed = FirstBadUtf8(merges) == std::string_view::npos && ReadVocab(vocab, &lists);
  for (size_t i = 0; listed && i < lines.size(); ++i) {
    listed = SplitMerge(lines[i], &lists.merges[i]);
  }
  if (listed) {
    const Json json = Gpt2Json(Json::object(), Json::array());
    Result<std::unique_ptr<Tokenizer>> read = Reader(json, vocab_where, &lists).Read();
    if (read) return read;
  }
  HEED_ASSIGN(Json tokens, ParseJsonObject(vocab, vocab_where));
  if (const size_t bad = FirstBadUtf8(merges); bad != std::string_view::npos) {
    return BadUtf8(merges_where, bad, merges[bad]);
  }
  Json list = Json::array();
  for (const std::string_view line : lines) list.push_back(std::string(line));
  const Json json = Gpt2Json(std::move(tokens), std::move(list));
  auto tokenizer = Reader(json, vocab_where).Read();
  if (tokenizer) return tokenizer;
  Error error = tokenizer.error();
  // The one place that is not in the first file.
  if (error.where.ends_with("model.merges")) error.where = merges_where;
  if (error.where.starts_with(vocab_where)) error.where = vocab_where;
  return tl::make_unexpected(std::move(error));
}

}  // namespace heed
