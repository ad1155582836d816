#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/mapped_file.h"
#include "report/format.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace heed {
namespace {

constexpr size_t kWidestLabel = 34;  // longer ones have their help on the next line

std::string Replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

std::string Placeholder(const Option& option) {
  switch (option.kind) {
    case ValueKind::kBool:
      return "";
    case ValueKind::kInteger:
      return "N";
    case ValueKind::kNumber:
      return "X";
    case ValueKind::kChoice: {
      std::string out;
      for (const std::string& choice : option.choices) out += (out.empty() ? "" : "|") + choice;
      return out;
    }
    case ValueKind::kText:
      break;
  }
  std::string word = option.name.substr(option.name.rfind('_') + 1);
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

std::string_view Expected(ValueKind kind) {
  switch (kind) {
    case ValueKind::kBool:
      return "true or false";
    case ValueKind::kInteger:
      return "an integer";
    case ValueKind::kNumber:
      return "a finite number";
    case ValueKind::kText:
    case ValueKind::kChoice:
      break;
  }
  return "a string";
}

std::string_view TypeName(toml::node_type type) {
  switch (type) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a truth value";
    default:
      return "a date or time";
  }
}

// A scalar of the file as the text that a flag would have, when its type fits the option.
Result<std::string> ScalarText(const std::string& where, const toml::node& node, ValueKind kind) {
  const bool number = kind == ValueKind::kNumber;
  if (kind == ValueKind::kBool && node.is_boolean()) return JsonText(node.as_boolean()->get());
  if ((number || kind == ValueKind::kInteger) && node.is_integer()) {
    return JsonText(node.as_integer()->get());
  }
  if (number && node.is_floating_point()) return TomlText(node.as_floating_point()->get());
  if ((kind == ValueKind::kText || kind == ValueKind::kChoice) && node.is_string()) {
    return node.as_string()->get();
  }
  return BadRequest(where, std::string(TypeName(node.type())), std::string(Expected(kind)));
}

// Choices that a narrow terminal has no room for go on in the next line.
void BreakChoices(std::string* label, size_t width) {
  constexpr size_t kIndent = 2;
  if (kIndent + label->size() <= width) return;
  const size_t bar = label->rfind('|', width - kIndent - 1);
  if (bar != std::string::npos) label->insert(bar + 1, "\n      ");
}

}  // namespace

std::string Option::Flag() const { return "--" + Replaced(name, '_', '-'); }

std::string Wrap(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t used = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (used > 0 && used + 1 + TextWidth(word) > width) {
      out += "\n" + std::string(indent, ' ');
      used = 0;
    } else if (used > 0) {
      out += ' ';
      ++used;
    }
    out += word;
    used += TextWidth(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void Options::BindArguments(std::string placeholder, std::string help,
                            std::vector<std::string>* values) {
  placeholder_ = std::move(placeholder);
  arguments_help_ = std::move(help);
  arguments_ = values;
}

Option* Options::Find(std::string_view name) {
  const std::string key = Replaced(std::string(name), '-', '_');
  for (Option& option : options_) {
    if (option.name == key) return &option;
  }
  return nullptr;
}

std::string Options::FirstGivenBut(std::span<const std::string_view> allowed) const {
  for (const Option& option : options_) {
    if (Given(option.name) &&
        std::find(allowed.begin(), allowed.end(), option.name) == allowed.end()) {
      return option.Flag();
    }
  }
  return "";
}

bool Options::Given(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) return !option.in_file.empty() || !option.in_flags.empty();
  }
  return false;
}

std::string Options::UnknownHint(std::string_view word, std::string_view prefix) const {
  std::vector<std::string> known;
  if (!prefix.empty()) known = {"config", "help"};
  for (const Option& option : options_) {
    known.push_back(prefix.empty() ? option.name : Replaced(option.name, '_', '-'));
    if (!prefix.empty() && option.kind == ValueKind::kBool) known.push_back("no-" + known.back());
  }
  const std::string nearest = NearestName(word, known);
  return nearest.empty() ? "see --help" : "did you mean " + std::string(prefix) + nearest + "?";
}

Status Options::Parse(const std::vector<std::string>& arguments) {
  HEED_TRY(ParseFlags(arguments));
  if (help_asked_) return {};
  if (!config_.empty()) HEED_TRY(ParseFile(config_));
  return Apply();
}

Status Options::Apply() {
  for (const Option& option : options_) {
    if (!option.in_file.empty()) HEED_TRY(option.assign(option.file_where, option.in_file));
    if (!option.in_flags.empty()) HEED_TRY(option.assign(option.Flag(), option.in_flags));
  }
  return {};
}

Status Options::ParseFlags(const std::vector<std::string>& arguments) {
  CLI::App app;
  app.allow_extras();
  app.set_help_flag();
  CLI::Option* help = app.add_flag("-h,--help");
  // Both spellings of a name; "!" marks the flag that means false.
  const auto names = [](const std::string& name) {
    const std::string kebab = Replaced(name, '_', '-');
    return kebab == name ? std::vector<std::string>{name} : std::vector<std::string>{kebab, name};
  };
  const auto add = [&](const std::string& name, bool is_flag) {
    std::string spec;
    for (const std::string& spelling : names(name)) {
      spec += (spec.empty() ? "--" : ",--") + spelling;
      if (is_flag) spec += ",!--no-" + spelling;
    }
    if (is_flag && name.find('_') != std::string::npos) spec += ",!--no_" + name;
    CLI::Option* option = is_flag ? app.add_flag(spec) : app.add_option(spec);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
    return option;
  };
  CLI::Option* config = add("config", false);
  std::map<std::string, CLI::Option*> bound;
  for (const Option& option : options_) {
    bound[option.name] = add(option.name, option.kind == ValueKind::kBool);
  }

  // "--stop=" is an empty value; the parser would take the next argument for it.
  std::vector<std::string> reversed;
  for (const std::string& argument : arguments) {
    const bool empty_value = argument.size() > 3 && argument.starts_with("--") &&
                             argument.find('=') + 1 == argument.size();
    const std::string name = empty_value ? argument.substr(2, argument.size() - 3) : "";
    const Option* option = empty_value ? Find(name) : nullptr;
    if (option != nullptr && option->kind != ValueKind::kBool) {
      reversed.push_back("--" + name);
      reversed.emplace_back();
    } else {
      reversed.push_back(argument);
    }
  }
  std::reverse(reversed.begin(), reversed.end());
  const std::string last = reversed.empty() ? "" : reversed.front();
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ArgumentMismatch&) {
    const Option* option = Find(std::string_view(last).substr(2));
    return BadRequest(Replaced(last, '_', '-'), "no value",
                      option == nullptr ? "FILE.toml" : Placeholder(*option));
  } catch (const CLI::ParseError& error) {
    return BadRequest("command line", error.what());
  }
  help_asked_ = help->count() > 0;
  if (help_asked_) return {};

  bool only_arguments = false;
  std::vector<std::string> rest;
  for (const std::string& extra : app.remaining()) {
    if (!only_arguments && extra == "--") {
      only_arguments = true;
    } else if (!only_arguments && extra.size() > 1 && extra[0] == '-') {
      const std::string word = extra.substr(0, extra.find('='));
      return BadRequest(
          word, "unknown option", "a known option",
          UnknownHint(std::string_view(word).substr(word.find_first_not_of('-')), "--"));
    } else if (arguments_ == nullptr) {
      return BadRequest("command line", "'" + extra + "'", "options alone", "see --help");
    } else if (extra.empty()) {
      return BadRequest(placeholder_, "an empty name", "a name");
    } else {
      rest.push_back(extra);
    }
  }
  if (arguments_ != nullptr) *arguments_ = std::move(rest);
  if (config->count() > 0) config_ = config->results().back();
  for (Option& option : options_) {
    option.in_flags = bound[option.name]->results();
    for (const std::string& text : option.in_flags) {
      const bool swallowed = option.kind != ValueKind::kBool && text.starts_with("--") &&
                             Find(std::string_view(text).substr(2)) != nullptr;
      if (swallowed)
        return BadRequest(option.Flag(), "no value before " + text, Placeholder(option));
    }
  }
  return {};
}

Status Options::ParseFile(const std::string& path) {
  HEED_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const toml::parse_result parsed = toml::parse(file.text(), path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fail(ErrorKind::kFormat, path + ":" + std::to_string(error.source().begin.line),
                std::string(error.description()), "", "write lines such as n_layer = 4");
  }
  for (const auto& [key, node] : parsed.table()) {
    const std::string name(key.str());
    const std::string where = path + ":" + std::to_string(key.source().begin.line) + ": " + name;
    Option* option = Find(name);
    if (option == nullptr) {
      return BadRequest(where, "unknown key", "a known one", UnknownHint(name, ""));
    }
    if (!option->in_file.empty()) {
      return BadRequest(where, "a key given twice", "one spelling of it");
    }
    option->file_where = where;
    if (option->is_list && node.is_array()) {
      for (const toml::node& element : *node.as_array()) {
        HEED_ASSIGN(std::string text, ScalarText(where, element, option->kind));
        option->in_file.push_back(std::move(text));
      }
    } else {
      HEED_ASSIGN(std::string text, ScalarText(where, node, option->kind));
      option->in_file.push_back(std::move(text));
    }
  }
  return {};
}

std::string Options::Usage() const {
  return placeholder_.empty() ? "[options]" : placeholder_ + " [options]";
}

std::string Options::List(size_t width) const {
  struct Row {
    std::string title, label, help;
  };
  std::vector<Row> rows;
  if (arguments_ != nullptr) rows.push_back({"Arguments", placeholder_, arguments_help_});
  for (const Option& option : options_) {
    std::string label = option.Flag(), help = option.help;
    if (option.kind == ValueKind::kBool) {
      if (option.default_true) label += "/--no-" + label.substr(2);
    } else {
      label += " " + Placeholder(option);
    }
    if (option.is_list) help += "; may be repeated";
    if (!option.default_text.empty()) help += " (default " + option.default_text + ")";
    if (option.default_true) help += " (default yes)";
    BreakChoices(&label, width);
    rows.push_back({option.title, label, help});
  }
  rows.push_back({rows.empty() ? "Options" : rows.back().title, "--config FILE.toml",
                  "settings by the same names; flags win"});
  rows.push_back({rows.back().title, "--help", "this page"});

  size_t widest = 0;
  for (const Row& row : rows) {
    if (row.label.size() <= kWidestLabel) widest = std::max(widest, row.label.size());
  }
  constexpr size_t kLeastBeside = 60;
  if (width < kLeastBeside) widest = 0;  // help below every label
  const size_t indent = widest + 4;
  std::string out, title;
  for (const Row& row : rows) {
    if (row.title != title) out += (out.empty() ? "" : "\n") + row.title + ":\n";
    title = row.title;
    out += "  " + row.label;
    out += row.label.size() > widest ? "\n" + std::string(indent, ' ')
                                     : std::string(indent - 2 - row.label.size(), ' ');
    out += Wrap(row.help, width - indent, indent) + "\n";
  }
  return out;
}

}  // namespace heed
