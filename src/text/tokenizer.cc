#include "text/tokenizer.h"

namespace heed {

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  std::optional<int32_t> previous;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    text += BytesAfter(previous, id);
    previous = id;
  }
  return text;
}

std::string_view Tokenizer::BytesAfter(std::optional<int32_t> previous, int32_t id) const {
  return !previous && bos() == id ? std::string_view() : TokenBytes(id);
}

std::vector<int32_t> Tokenizer::WithBos(std::vector<int32_t> ids) const {
  if (bos() && (ids.empty() || ids.front() != *bos())) ids.insert(ids.begin(), *bos());
  return ids;
}

uint64_t Tokenizer::Fingerprint() const {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add_byte = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3; };
  const auto add_number = [&add_byte](uint64_t number) {
    for (int i = 0; i < 8; ++i) add_byte(static_cast<uint8_t>(number >> (8 * i)));
  };
  for (int64_t id = 0; id < vocab_size(); ++id) {
    const std::string_view bytes = TokenBytes(static_cast<int32_t>(id));
    add_number(bytes.size());
    for (const char byte : bytes) add_byte(static_cast<uint8_t>(byte));
  }
  add_number(static_cast<uint64_t>(bos().value_or(-1)));
  for (const uint64_t rule : Rules()) add_number(rule);
  return hash;
}

}  // namespace heed
