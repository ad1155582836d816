// The shortest input that a live program fails.
#pragma once

#include "verify/diagnose/live_session.h"

namespace heed {

// Looks for one that is shorter than `probe`, of those in which what the report names shows.
// Errors: kInterrupted, kIo.
Status ShortenFailingInput(LiveSession* session, const Probe& probe, LiveReport* report);

// The whole input when it fails, but for the row of low variance, which is not in its code.
void KeepWholeInput(LiveSession* session, const Probe& probe, LiveReport* report);

}  // namespace heed
