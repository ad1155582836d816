#include "base/json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/quote.h"

namespace heed {
namespace {

using Json = nlohmann::json;

constexpr int kDepthCap = 32;

// Looked at before anything is parsed: values nested without end exhaust the stack of whoever
// copies or prints them.
bool IsDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > kDepthCap) return true;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

tl::unexpected<Error> Bad(const std::string& where, std::string found, std::string expected) {
  return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected),
              "copy the file again from its source");
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const std::string& where) {
  // nlohmann takes a zero byte for the end, and keeps the last of two equal keys.
  if (text.find('\0') != std::string_view::npos) return Bad(where, "a zero byte", "JSON in UTF-8");
  if (IsDeep(text)) {
    return Bad(where, fmt::format("JSON nested deeper than {}", kDepthCap), "flatter JSON");
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twice = Quoted(parsed.get<std::string>());
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    return Bad(where, fmt::format("text that stops being JSON at byte {}", error.byte),
               "JSON in UTF-8");
  } catch (const Json::exception&) {
    return Bad(where, "a number beyond every range", "numbers that a double can hold");
  }
  if (!twice.empty()) return Bad(where, "two keys " + twice + " in one object", "one");
  return json;
}

Result<Json> ParseJsonObject(std::string_view text, const std::string& where) {
  HEED_ASSIGN(Json json, ParseJson(text, where));
  if (!json.is_object()) return Bad(where, json.type_name(), "a JSON object");
  return json;
}

}  // namespace heed
