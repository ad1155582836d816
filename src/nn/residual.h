// The end of each half block: y = residual + dropout(x W + b).
#pragma once

#include <cstdint>

#include "nn/linear.h"
#include "nn/pass.h"

namespace heed {

// y [rows, out] from x [rows, in]; y may be the residual [rows, out] itself.
void ProjectToResidual(const Pass& pass, const Linear& proj, uint32_t dropout_site, Factor x,
                       const float* residual, float* y);

// The gradient behind the dropout of `site`: dy itself when nothing is dropped, else `scratch`
// [rows, C], filled with dy [rows, C] times the mask.
const float* DropoutGradient(const Pass& pass, uint32_t site, const float* dy, int64_t C,
                             float* scratch);

}  // namespace heed
