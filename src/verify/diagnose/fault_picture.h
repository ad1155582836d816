// What a fault looks like on a tiny example, computed by replay.
#pragma once

#include <string>
#include <string_view>

namespace heed {

// An SVG of a few KB: one head's weights [T, S] by the right formula and with the fault, where they
// differ, and the error of y [T, C]; of other kinds what FaultView holds. Empty for a fault that
// cannot be replayed.
std::string FaultPicture(std::string_view id);

}  // namespace heed
