#include "inspect/attention_settings.h"

#include <fmt/format.h>

#include <limits>
#include <type_traits>

#include "base/fields_text.h"

namespace heed {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargestSize = int64_t{1} << 24;
// Where positions are exact in double and their angles still mean something.
constexpr int64_t kFarthestPosition = int64_t{1} << 31;

Status CheckRange(const std::string& where, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return BadRequest(
      where, fmt::format("{}", value),
      most == kNoLimit ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most));
}

Status CheckSettings(const AttentionSettings& settings, const SettingTexts& texts,
                     const std::string& where) {
  const auto stated = [&](const char* name) { return texts.contains(name); };
  const auto check = [&](const char* name, int64_t value, int64_t least, int64_t most) -> Status {
    return stated(name) ? CheckRange(where + ": " + name, value, least, most) : Status();
  };
  HEED_TRY(check("n_head", settings.n_head, 1, kLargestSize));
  HEED_TRY(check("n_kv_head", settings.n_kv_head, 1, kLargestSize));
  HEED_TRY(check("head_dim", settings.head_dim, 1, kLargestSize));
  HEED_TRY(check("rotary_dim", settings.rotary_dim, 0, kLargestSize));
  HEED_TRY(check("window", settings.window, 0, kNoLimit));
  HEED_TRY(check("rope_first_position", settings.rope_first_position, -kFarthestPosition,
                 kFarthestPosition));
  if (settings.rotary_dim % 2 != 0) {
    return BadRequest(where + ": rotary_dim", fmt::format("{}", settings.rotary_dim),
                      "an even number: channels turn in pairs");
  }
  if (!(settings.rope_theta > 0)) {
    return BadRequest(where + ": rope_theta", fmt::format("{}", settings.rope_theta),
                      "a number above 0");
  }
  if (stated("position")) return {};
  for (const char* name : {"rope_theta", "rope_pairing", "rope_first_position", "rotary_dim"}) {
    if (stated(name)) {
      return BadRequest(where + ": position", "none stated although " + std::string(name) + " is",
                        "rope or none", "give --position");
    }
  }
  return {};
}

}  // namespace

std::span<const EnumName<QkvLayout>> EnumNames(QkvLayout) {
  static constexpr EnumName<QkvLayout> kNames[] = {{QkvLayout::kBlocks, "blocks"},
                                                   {QkvLayout::kPerHead, "per_head"}};
  return kNames;
}

SettingTexts TextsOf(const AttentionSettings& settings) {
  SettingTexts texts;
  AttentionSettings::Fields(settings,
                            [&](std::string_view name, const auto& value, std::string_view) {
                              if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
                                texts.emplace(name, NameOf(value));
                              } else {
                                texts.emplace(name, fmt::format("{}", value));
                              }
                            });
  return texts;
}

Result<AttentionSettings> ParseAttentionSettings(const SettingTexts& stated,
                                                 const SettingTexts& given,
                                                 const std::string& where) {
  SettingTexts texts = given;
  texts.insert(stated.begin(), stated.end());
  std::erase_if(texts,
                [](const auto& entry) { return entry.second == "null" || entry.second == "None"; });
  AttentionSettings settings;
  Status status;
  AttentionSettings::Fields(settings, [&](std::string_view name, auto& value, std::string_view) {
    const auto found = texts.find(std::string(name));
    if (!status || found == texts.end()) return;
    status = ParseField(where + ": " + std::string(name), found->second, &value);
  });
  HEED_TRY(status);
  HEED_TRY(CheckSettings(settings, texts, where));
  // A file that lists every setting says 0 where there is no window; nobody asks for one of 0 keys.
  if (given.contains("window")) {
    HEED_TRY(CheckRange(where + ": window", settings.window, 1, kNoLimit));
  }
  return settings;
}

}  // namespace heed
