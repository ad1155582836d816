// Numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heed {

std::string FormatCount(int64_t count);       // "1,115,394"
std::string FormatQuantity(double quantity);  // three digits: "827", "12.3k", "1.12M"
std::string FormatBytes(double bytes);        // "512 B", "2.25 MiB"
std::string FormatDuration(double seconds);   // "12 ms", "4.2 s", "1:07", "2:03:05"
// Four significant digits, no exponent where a plain number is short: "4.174", "0.0003", "1.2e-07".
std::string FormatFigure(double value);

// Columns that UTF-8 text takes on a terminal, one for each code point.
size_t TextWidth(std::string_view text);

}  // namespace heed
