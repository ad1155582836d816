#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The member, or null when it is absent.
Json Member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? Json() : *found;
}

std::string TypeOf(const Json& object) {
  const Json type = Member(object, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

bool IsNothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

Status RefuseSettings(const Json& object, std::initializer_list<const char*> keys,
                      const std::string& where) {
  for (const char* key : keys) {
    if (!IsNothing(Member(object, key))) {
      return Fail(
          ErrorKind::kFormat, where + ": " + key, "a setting", "none",
          "this version reads character and byte vocabularies that leave the text as it is");
    }
  }
  return {};
}

// tokens[id] from the vocabulary's token -> id.
Result<std::vector<std::string>> TokensById(const Json& vocab, const std::string& where) {
  if (!vocab.is_object() || vocab.empty()) {
    return Fail(ErrorKind::kFormat, where, vocab.is_object() ? "no tokens" : vocab.type_name(),
                "an object from token to id");
  }
  std::vector<std::string> tokens(vocab.size());
  std::vector<bool> taken(vocab.size());
  for (const auto& [token, value] : vocab.items()) {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < tokens.size();
    if (!fits) {
      return Fail(ErrorKind::kFormat, where,
                  fmt::format("id {} of token '{}'",
                              value.is_number() ? value.dump() : value.type_name(), token),
                  fmt::format("each of 0 to {} once", tokens.size() - 1));
    }
    const uint64_t id = value.get<uint64_t>();
    if (taken[id]) {
      return Fail(ErrorKind::kFormat, where, fmt::format("id {} twice", id), "every id once");
    }
    taken[id] = true;
    tokens[id] = token;
  }
  return tokens;
}

Result<std::unique_ptr<Tokenizer>> ByteVocabulary(std::span<const std::string> tokens,
                                                  const std::string& where) {
  std::string symbol;
  bool in_order = tokens.size() == 256;
  for (size_t byte = 0; in_order && byte < 256; ++byte) {
    symbol.clear();
    AppendUtf8(ByteSymbol(static_cast<uint8_t>(byte)), &symbol);
    in_order = tokens[byte] == symbol;
  }
  if (!in_order) {
    return Fail(ErrorKind::kFormat, where,
                fmt::format("a byte-level vocabulary of {} tokens", tokens.size()),
                "the 256 bytes in order");
  }
  return std::make_unique<ByteTokenizer>();
}

Result<std::unique_ptr<Tokenizer>> CharVocabulary(std::span<const std::string> tokens,
                                                  const std::string& where) {
  std::vector<char32_t> characters;
  for (const std::string& token : tokens) {
    const Utf8Step step = token.empty() ? Utf8Step{} : NextUtf8(token);
    if (step.kind != Utf8Kind::kCharacter || step.length != static_cast<int>(token.size())) {
      return Fail(ErrorKind::kFormat, where, fmt::format("token '{}'", token),
                  "one character per token");
    }
    characters.push_back(step.code);
  }
  return std::make_unique<CharTokenizer>(characters);
}

}  // namespace

std::string TokenizerJsonWithoutMerges(std::span<const std::string> tokens, bool byte_level) {
  OrderedJson vocab = OrderedJson::object();
  // Appended to the list below the object: its own insertion searches all keys.
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (size_t id = 0; id < tokens.size(); ++id) entries.emplace_back(tokens[id], id);
  // use_regex off: no word boundaries are needed where nothing merges.
  const OrderedJson bytes = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
  const OrderedJson json = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", OrderedJson::array()},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", byte_level ? bytes : OrderedJson()},
                            {"post_processor", nullptr},
                            // Without Fuse, Hugging Face puts a space between tokens.
                            {"decoder", byte_level ? bytes : OrderedJson{{"type", "Fuse"}}},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", std::move(vocab)},
                              {"merges", OrderedJson::array()}}}};
  return json.dump(2) + "\n";
}

Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                      const std::string& where) {
  HEED_ASSIGN(const Json json, ParseJsonObject(text, where));
  const Json model = Member(json, "model");
  if (TypeOf(model) != "BPE") {
    return Fail(ErrorKind::kFormat, where + ": model.type",
                TypeOf(model).empty() ? "none" : TypeOf(model), "BPE");
  }
  const Json merges = Member(model, "merges");
  if (!merges.is_array()) {
    return Fail(ErrorKind::kFormat, where + ": model.merges", merges.type_name(), "a list");
  }
  if (!merges.empty()) {
    return Fail(ErrorKind::kFormat, where + ": model.merges",
                fmt::format("BPE merges ({}) are not supported by this version", merges.size()), "",
                "use a character or byte vocabulary");
  }
  HEED_TRY(RefuseSettings(json, {"added_tokens", "normalizer", "truncation", "padding"}, where));
  HEED_TRY(RefuseSettings(
      model,
      {"unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"},
      where + ": model"));
  HEED_ASSIGN(const std::vector<std::string> tokens,
              TokensById(Member(model, "vocab"), where + ": model.vocab"));

  const Json splitter = Member(json, "pre_tokenizer");
  const bool byte_level = TypeOf(splitter) == "ByteLevel";
  const bool isolated =
      TypeOf(splitter) == "Split" && Member(splitter, "behavior") == Json("Isolated");
  if (!splitter.is_null() && !byte_level && !isolated) {
    return Fail(ErrorKind::kFormat, where + ": pre_tokenizer", TypeOf(splitter),
                "none, an isolating Split, or ByteLevel");
  }
  if (byte_level) HEED_TRY(RefuseSettings(splitter, {"add_prefix_space"}, where));
  for (const char* key : {"decoder", "post_processor"}) {
    const std::string type = TypeOf(Member(json, key)), wanted = byte_level ? "ByteLevel" : "Fuse";
    if (!Member(json, key).is_null() && type != wanted) {
      return Fail(ErrorKind::kFormat, where + ": " + key, type.empty() ? "no type" : type, wanted);
    }
  }
  return byte_level ? ByteVocabulary(tokens, where + ": model.vocab")
                    : CharVocabulary(tokens, where + ": model.vocab");
}

}  // namespace heed
