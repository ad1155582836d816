#include "base/fields_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace heed {
namespace {

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

Status ParseField(const std::string& where, std::string_view text, bool* value) {
  std::string word(text);
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (IsOneOf(word, {"true", "yes", "on", "1"})) {
    *value = true;
  } else if (IsOneOf(word, {"false", "no", "off", "0"})) {
    *value = false;
  } else {
    return BadRequest(where, Quoted(text), "true or false");
  }
  return {};
}

Status ParseField(const std::string& where, std::string_view text, int64_t* value) {
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error == std::errc::result_out_of_range) {
    return BadRequest(where, Quoted(text), "an integer of at most 64 bits");
  }
  if (error != std::errc{} || end != text.data() + text.size()) {
    return BadRequest(where, Quoted(text), "an integer");
  }
  *value = parsed;
  return {};
}

Status ParseField(const std::string& where, std::string_view text, double* value) {
  double parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error == std::errc::result_out_of_range) {
    return BadRequest(where, Quoted(text), "a number within the range of double precision");
  }
  if (error != std::errc{} || end != text.data() + text.size()) {
    return BadRequest(where, Quoted(text), "a number");
  }
  if (!std::isfinite(parsed)) return BadRequest(where, Quoted(text), "a finite number");
  *value = parsed;
  return {};
}

Status ParseField(const std::string&, std::string_view text, std::string* value) {
  *value = text;
  return {};
}

std::string JoinNames(std::span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

std::string JsonText(bool value) { return value ? "true" : "false"; }
std::string JsonText(int64_t value) { return fmt::format("{}", value); }
std::string JsonText(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}
std::string JsonText(std::string_view value) {
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TomlText(bool value) { return JsonText(value); }
std::string TomlText(int64_t value) { return JsonText(value); }
std::string TomlText(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}
std::string TomlText(std::string_view value) {
  // JSON's string is TOML's but for DEL, which TOML wants escaped.
  std::string text = JsonText(value);
  for (size_t at; (at = text.find('\x7f')) != std::string::npos;) text.replace(at, 1, "\\u007F");
  return text;
}

}  // namespace heed
