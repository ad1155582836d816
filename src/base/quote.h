// Names out of files, made fit for an error's one line.
#pragma once

#include <string>
#include <string_view>

namespace heed {

// `text` in double quotes, with control characters and bytes above 0x7e as \xNN, cut after 60
// bytes.
std::string Quoted(std::string_view text);

// Whether `text` is UTF-8 as RFC 3629 has it: shortest forms, no surrogates, up to U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace heed
