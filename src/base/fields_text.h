// A field's value as text: strict parsing of what people type, and the spellings of TOML and JSON.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/fields.h"
#include "base/nearest.h"
#include "base/status.h"

namespace heed {

// Each sets `value` from the whole of `text`, or fails (kRequest) naming `where`. Numbers are
// decimal and finite, and fit their type; truth is true/false, yes/no, on/off or 1/0 in any case.
Status ParseField(const std::string& where, std::string_view text, bool* value);
Status ParseField(const std::string& where, std::string_view text, int64_t* value);
Status ParseField(const std::string& where, std::string_view text, double* value);
Status ParseField(const std::string& where, std::string_view text, std::string* value);

// "a, b or c".
std::string JoinNames(std::span<const std::string> names);

// The names of an enum's values, in their order.
template <class E>
std::vector<std::string> ChoicesOf(E) {
  std::vector<std::string> names;
  for (const EnumName<E>& entry : EnumNames(E{})) names.emplace_back(entry.name);
  return names;
}

template <class E>
requires std::is_enum_v<E> Status ParseField(const std::string& where, std::string_view text,
                                             E* value) {
  if (ValueOf(text, value)) return {};
  const std::vector<std::string> names = ChoicesOf(E{});
  const std::string nearest = NearestName(text, names);
  return BadRequest(where, "'" + std::string(text) + "'", JoinNames(names),
                    nearest.empty() ? "" : "did you mean " + nearest + "?");
}

// Sets a field from one text or more: a list takes all, anything else the last.
template <class T>
Status AssignField(const std::string& where, std::span<const std::string> texts, T* value) {
  return ParseField(where, texts.back(), value);
}
template <class T>
Status AssignField(const std::string& where, std::span<const std::string> texts,
                   std::vector<T>* values) {
  std::vector<T> parsed(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) HEED_TRY(ParseField(where, texts[i], &parsed[i]));
  *values = std::move(parsed);
  return {};
}

// JSON: a number that is not finite is null, a byte that is not UTF-8 becomes U+FFFD.
std::string JsonText(bool value);
std::string JsonText(int64_t value);
std::string JsonText(double value);
std::string JsonText(std::string_view value);
// TOML: the same, but every double has a point or an exponent, and NaN and inf are written.
std::string TomlText(bool value);
std::string TomlText(int64_t value);
std::string TomlText(double value);
std::string TomlText(std::string_view value);

// Without these a literal would choose bool.
inline std::string JsonText(const char* value) { return JsonText(std::string_view(value)); }
inline std::string TomlText(const char* value) { return TomlText(std::string_view(value)); }
inline std::string JsonText(const std::string& value) { return JsonText(std::string_view(value)); }
inline std::string TomlText(const std::string& value) { return TomlText(std::string_view(value)); }

template <class E>
requires std::is_enum_v<E> std::string JsonText(E value) { return JsonText(NameOf(value)); }
template <class E>
requires std::is_enum_v<E> std::string TomlText(E value) { return TomlText(NameOf(value)); }

template <class T>
std::string JsonText(const std::vector<T>& values) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : ",") + JsonText(value);
  return "[" + out + "]";
}
template <class T>
std::string TomlText(const std::vector<T>& values) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : ", ") + TomlText(value);
  return "[" + out + "]";
}

// {"n_layer":4,...} in the order of the fields.
template <class Settings>
std::string ToJson(const Settings& settings) {
  std::string out;
  Settings::Fields(settings, [&](std::string_view name, const auto& value, std::string_view) {
    out += (out.empty() ? "" : ",") + JsonText(name) + ":" + JsonText(value);
  });
  return "{" + out + "}";
}

// A line "n_layer = 4  # blocks" for every field, or for those named in `only`; `--config` reads it
// again.
template <class Settings>
std::string ToToml(const Settings& settings, std::span<const std::string_view> only = {}) {
  std::string out;
  Settings::Fields(settings, [&](std::string_view name, const auto& value, std::string_view help) {
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) return;
    out += std::string(name) + " = " + TomlText(value) + "  # " + std::string(help) + "\n";
  });
  return out;
}

}  // namespace heed
