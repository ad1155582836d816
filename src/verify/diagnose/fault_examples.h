// Small inputs of every kind of dump but attention, on which a fault shows.
#pragma once

#include <optional>
#include <string>

#include "verify/diagnose/replay.h"

namespace heed {

// On the first example that the fault `id` changes; nothing when it changes none.
std::optional<FaultView> ViewFault(const std::string& id);

}  // namespace heed
