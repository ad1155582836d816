// More questions about an answer that known faults explain.
#pragma once

#include "verify/diagnose/live_session.h"

namespace heed {

// Asks what parts the explanations most, while there are several. Errors: kInterrupted, kIo.
Status SeparateExplanations(LiveSession* session, const Probe& probe, Diagnosis* diagnosis);

// A name that fits one input by chance does not fit the next: it stays when it explains a second
// one too, with the same numbers. Errors: kInterrupted, kIo.
Status ConfirmExplanation(LiveSession* session, const Probe& probe, Diagnosis* diagnosis);

}  // namespace heed
