#include "model/gguf_vocabulary.h"

#include <fmt/format.h>

#include <set>

#include "text/byte_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

const char* const kJsonKey = "tokenizer.huggingface.json";

// llama.cpp's kinds of tokens.
constexpr int64_t kNormal = 1, kUnused = 5;

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

}  // namespace

Result<std::unique_ptr<Tokenizer>> GgufVocabulary(const GgufFile& file) {
  std::string json;
  HEED_TRY(file.Get(kJsonKey, &json));
  if (!json.empty()) return ParseTokenizerJson(json, file.where() + ": " + kJsonKey);
  return Fail(ErrorKind::kFormat, file.where() + ": " + kJsonKey, "no such key", "a vocabulary");
}

void PutGgufVocabulary(const Tokenizer* tokenizer, int64_t vocab_size,
                       std::vector<std::pair<std::string, GgufValue>>* metadata) {
  const auto put = [metadata](const char* key, GgufValue value) {
    metadata->emplace_back(key, std::move(value));
  };
  if (tokenizer == nullptr) return put("tokenizer.ggml.model", std::string("no_vocab"));
  std::vector<std::string> tokens;
  std::set<std::string> merges;
  std::vector<int64_t> types;
  for (int64_t id = 0; id < vocab_size; ++id) {
    const bool padding = id >= tokenizer->vocab_size();
    const std::string_view bytes =
        padding ? std::string_view() : tokenizer->TokenBytes(static_cast<int32_t>(id));
    tokens.push_back(padding ? fmt::format("[PAD{}]", id) : Spelling(bytes));
    types.push_back(padding ? kUnused : kNormal);
    AddMerges(bytes, &merges);
  }
  const int64_t end = EndToken(*tokenizer, vocab_size);
  put("tokenizer.ggml.model", std::string("gpt2"));
  put("tokenizer.ggml.pre", std::string("gpt-2"));
  put("tokenizer.ggml.tokens", std::move(tokens));
  put("tokenizer.ggml.token_type", std::move(types));
  put("tokenizer.ggml.merges", std::vector<std::string>(merges.begin(), merges.end()));
  put("tokenizer.ggml.bos_token_id", end);
  put("tokenizer.ggml.eos_token_id", end);
  put("tokenizer.ggml.add_bos_token", false);
  put(kJsonKey, tokenizer->Json());
}

}  // namespace heed
