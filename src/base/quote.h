// Names and texts from outside, made fit to be shown.
#pragma once

#include <string>
#include <string_view>

namespace heed {

// `text` in double quotes, with control characters and bytes above 0x7e as \xNN, cut after 60
// bytes.
std::string Quoted(std::string_view text);

// `text` as one word of a shell's command line.
std::string ShellWord(std::string_view text);

// The text fit for a terminal or a picture: control characters and bytes that are no UTF-8 become
// '?'.
std::string Printable(std::string_view text);

// Whether `text` is UTF-8 as RFC 3629 has it: shortest forms, no surrogates, up to U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace heed
