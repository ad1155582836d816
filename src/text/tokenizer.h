// A vocabulary: text to token ids and back. Kept as `tokenizer.json` of Hugging Face's layout.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace heed {

// Where a piece of text stands, for errors.
struct TextPlace {
  std::string name = "text";
  uint64_t byte = 0;  // offset of the piece's first byte
  // The piece goes on where another stopped at a CutAt: nothing that begins a text is put before
  // it.
  bool continues = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;  // "char", "byte", "bpe"
  virtual int64_t vocab_size() const = 0;
  // The bytes of a token, id in [0, vocab_size).
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  // The token that starts a text, when the vocabulary has one.
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  // The token that ends one.
  virtual std::optional<int32_t> eos() const { return std::nullopt; }
  // What `id` adds to a text behind `previous`, or at its start: TokenBytes, without what stands
  // for the start of a text.
  virtual std::string_view BytesAfter(std::optional<int32_t> previous, int32_t id) const;
  // `ids` with bos before them, unless they begin with it or there is none.
  std::vector<int32_t> WithBos(std::vector<int32_t> ids) const;

  // The ids of `text`, without bos; every token stands for at least one byte. Errors: text that
  // the vocabulary cannot spell (kRequest), or that is not UTF-8 where it must be (kFormat).
  Result<std::vector<int32_t>> Encode(std::string_view text) const { return Encode(text, {}); }
  virtual Result<std::vector<int32_t>> Encode(std::string_view text,
                                              const TextPlace& place) const = 0;

  // The first place at or after `from` where `text` may be cut so that the ids of the parts are
  // the ids of the whole.
  virtual size_t CutAt(std::string_view text, size_t from) const = 0;

  // The contents of tokenizer.json.
  virtual std::string Json() const = 0;

  // What the tokens add one after another: UTF-8 only if the ids spell whole characters. Ids
  // outside the vocabulary give nothing.
  std::string Decode(std::span<const int32_t> ids) const;

  // FNV-1a (64 bits) of every token's length and bytes in the order of ids, of bos, and of the
  // rules if there are any: equal for vocabularies that read and write the same.
  uint64_t Fingerprint() const;

 protected:
  // Numbers that say how text is cut, besides the tokens.
  virtual std::vector<uint64_t> Rules() const { return {}; }
};

// Reads tokenizer.json; `where` names it in errors. Understands the BPE type: characters or bytes
// without merges; GPT-2's bytes with merges, cut by a pattern of text/split.h; SentencePiece's
// characters with byte fallback. Errors (kFormat): JSON that is broken or repeats a key, another
// model type, ids that repeat, leave holes or are negative, merges of unknown tokens or twice, an
// unknown split pattern, and settings that would change the text in other ways.
Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                      const std::string& where);

}  // namespace heed
