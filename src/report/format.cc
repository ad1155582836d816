#include "report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace heed {
namespace {

// Three significant digits of a number below 1000.
std::string ThreeDigits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

// Divides by `step` until the number has at most three digits before its point.
template <size_t N>
std::pair<double, const char*> Scaled(double value, double step,
                                      const std::array<const char*, N>& units) {
  size_t unit = 0;
  while (unit + 1 < N && std::abs(value) >= (step == 1000 ? 999.5 : step)) {
    value /= step;
    ++unit;
  }
  return {value, units[unit]};
}

}  // namespace

std::string FormatCount(int64_t count) {
  std::string text = fmt::format("{}", count);
  const size_t first_digit = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string FormatQuantity(double quantity) {
  if (!std::isfinite(quantity)) return fmt::format("{}", quantity);
  const auto [value, unit] = Scaled<5>(quantity, 1000, {"", "k", "M", "G", "T"});
  const bool whole = *unit == '\0' && value == std::floor(value);
  return (whole ? fmt::format("{:.0f}", value) : ThreeDigits(value)) + unit;
}

std::string FormatBytes(double bytes) {
  const auto [value, unit] = Scaled<5>(bytes, 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
  return (unit[1] == 'B' ? fmt::format("{:.0f}", value) : ThreeDigits(value)) + unit;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::min(std::round(seconds), 1e15));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
}

std::string FormatFigure(double value) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return fmt::format("{:.2g}", value);
  return fmt::format("{:.4g}", value);
}

size_t TextWidth(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace heed
