// The checks themselves, each a question to a model. See check.cc for what each one rules out.
#pragma once

#include "base/status.h"
#include "verify/probe.h"

namespace heed {

// Passes through the whole model (pass_checks.cc).
Result<Finding> CheckShapes(Probe& probe);
Result<Finding> CheckEvalRepeats(Probe& probe);
Result<Finding> CheckCausality(Probe& probe);
Result<Finding> CheckCausalityAtLargeScores(Probe& probe);
Result<Finding> CheckCausalityOfLayers(Probe& probe);
Result<Finding> CheckCached(Probe& probe);
Result<Finding> CheckChunked(Probe& probe);
Result<Finding> CheckPositionsAfterPrompt(Probe& probe);
Result<Finding> CheckPadding(Probe& probe);
Result<Finding> CheckBatch(Probe& probe);

// Attention alone, on the model's own queries and keys, and rotation alone (attention_checks.cc).
Result<Finding> CheckRowSums(Probe& probe);
Result<Finding> CheckPattern(Probe& probe);
Result<Finding> CheckHeadMap(Probe& probe);
Result<Finding> CheckRopeAngles(Probe& probe);
Result<Finding> CheckRopeNorm(Probe& probe);
Result<Finding> CheckRopeRelative(Probe& probe);
Result<Finding> CheckRopeQuarterTurns(Probe& probe);

// Training, and what a model must keep (training_checks.cc).
Result<Finding> CheckDropoutModes(Probe& probe);
Result<Finding> CheckDropoutMean(Probe& probe);
Result<Finding> CheckGradient(Probe& probe);
Result<Finding> CheckReference(Probe& probe);
Result<Finding> CheckReferenceGradient(Probe& probe);
Result<Finding> CheckStartLoss(Probe& probe);
Result<Finding> CheckOverfit(Probe& probe);
Result<Finding> CheckSaveLoad(Probe& probe);
Result<Finding> CheckThreads(Probe& probe);

}  // namespace heed
