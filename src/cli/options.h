// The options of one command, bound to the fields of settings structs: from the command line, from
// a TOML file (--config), and explained by --help. Later wins: the struct's own values (defaults,
// or a preset followed by Apply), then the file, then the flags.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/fields_text.h"
#include "base/status.h"

namespace heed {

// What a field holds, as help, the command line and TOML need to know it.
enum class ValueKind { kBool, kInteger, kNumber, kText, kChoice };

struct Option {
  using Assign =
      std::function<Status(const std::string& where, const std::vector<std::string>& texts)>;

  std::string name;  // the field's: "n_layer"
  std::string title;
  std::string help;
  std::string default_text;          // "" when it has none worth showing
  std::vector<std::string> choices;  // of an enum
  ValueKind kind = ValueKind::kText;
  bool is_list = false;
  bool default_true = false;
  Assign assign;

  // What was given, and where: nothing, or at least one text.
  std::vector<std::string> in_file, in_flags;
  std::string file_where;

  std::string Flag() const;  // "--n-layer"
};

class Options {
 public:
  // Makes an option of every field of `settings`, or of those named in `only`, under a heading of
  // the help. The struct must outlive this object; a name may be bound once.
  template <class Settings>
  void Bind(std::string_view title, Settings& settings, std::vector<std::string_view> only = {});

  // Takes arguments that are no options. Without it, one is an error.
  void BindArguments(std::string placeholder, std::string help, std::vector<std::string>* values);

  // Reads the arguments behind the command's name and the file of --config, and applies them.
  // Errors (kRequest) are one line that names the option or the file's line.
  Status Parse(const std::vector<std::string>& arguments);

  // Sets every given value once more: for after a preset has filled the structs.
  Status Apply();

  // Whether the field was given in the file or by a flag.
  bool Given(std::string_view name) const;
  // The flag of the first given field that is not among `allowed`; "" when there is none.
  std::string FirstGivenBut(std::span<const std::string_view> allowed) const;

  bool help_asked() const { return help_asked_; }

  // The two halves of a help page: "RUN... [options]", and the aligned list.
  std::string Usage() const;
  std::string List(size_t width) const;

 private:
  Status ParseFlags(const std::vector<std::string>& arguments);
  Status ParseFile(const std::string& path);
  std::string UnknownHint(std::string_view word, std::string_view prefix) const;
  Option* Find(std::string_view name);

  std::vector<Option> options_;
  std::string config_;
  std::string placeholder_, arguments_help_;
  std::vector<std::string>* arguments_ = nullptr;
  bool help_asked_ = false;
};

// Wraps `text` at spaces to lines of at most `width` characters, each after the first behind
// `indent` spaces.
std::string Wrap(std::string_view text, size_t width, size_t indent);

namespace options_internal {

template <class T>
struct Describe;
template <>
struct Describe<bool> {
  static constexpr ValueKind kKind = ValueKind::kBool;
};
template <>
struct Describe<int64_t> {
  static constexpr ValueKind kKind = ValueKind::kInteger;
};
template <>
struct Describe<double> {
  static constexpr ValueKind kKind = ValueKind::kNumber;
};
template <>
struct Describe<std::string> {
  static constexpr ValueKind kKind = ValueKind::kText;
};
template <class E>
requires std::is_enum_v<E>
struct Describe<E> {
  static constexpr ValueKind kKind = ValueKind::kChoice;
};
template <class T>
struct Describe<std::vector<T>> {
  static constexpr ValueKind kKind = Describe<T>::kKind;
};

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

// As help shows it. A zero among integers stands for "derived from others" and is left out,
// as is a NaN, which stands for "none".
template <class T>
std::string DefaultText(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return "";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return value == 0 ? "" : JsonText(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(NameOf(value));
  } else if constexpr (kIsList<T>) {
    std::string out;
    for (const auto& element : value) out += (out.empty() ? "" : ", ") + DefaultText(element);
    return out;
  } else {
    return std::isnan(value) ? "" : JsonText(value);
  }
}

}  // namespace options_internal

template <class Settings>
void Options::Bind(std::string_view title, Settings& settings, std::vector<std::string_view> only) {
  Settings::Fields(settings, [&](std::string_view name, auto& value, std::string_view help) {
    using T = std::remove_reference_t<decltype(value)>;
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) return;
    Option option;
    option.name = name;
    option.title = title;
    option.help = help;
    option.kind = options_internal::Describe<T>::kKind;
    option.is_list = options_internal::kIsList<T>;
    option.default_text = options_internal::DefaultText(value);
    if constexpr (std::is_enum_v<T>) option.choices = ChoicesOf(T{});
    if constexpr (std::is_same_v<T, bool>) option.default_true = value;
    option.assign = [&value](const std::string& where, const std::vector<std::string>& texts) {
      return AssignField(where, texts, &value);
    };
    options_.push_back(std::move(option));
  });
}

}  // namespace heed
