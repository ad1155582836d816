// Diagnosis of one saved update of AdamW (Loshchilov, Hutter 2019): for each parameter NAME its
// numbers before, grad.NAME, and after.NAME; m.NAME and v.NAME, the moments before, where they are
// not zero.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/replay.h"

namespace heed {

// A gradient [N, ..] with one axis more than its parameter holds N micro-batches, to be averaged.
// Settings: learning_rate (needed), beta1 (0.9), beta2, eps (1e-8), weight_decay on tensors of two
// and more dimensions, step (the number of this update, from 1), grad_clip (0: none) and grad_norm
// (of the gradients in the file when not stated). With min_lr, warmup_iters and
// lr_decay_iters, learning_rate is the peak of the schedule of `heed train`, in which `step`
// stands. beta2 and weight_decay are tried when not stated. Errors (kFormat, kRequest) name the
// tensor or setting.
Result<Diagnosis> DiagnoseOptimizer(const TensorFile& dump, const std::string& where,
                                    const SettingTexts& given);
std::span<const FaultKind> OptimizerFaults();
// What a fault makes of such a dump; nothing where it does not show.
Result<std::optional<FaultView>> ViewOptimizerFault(const TensorFile& dump,
                                                    const SettingTexts& given,
                                                    const std::string& id);

}  // namespace heed
