#include "nn/residual.h"

#include <algorithm>

namespace heed {

void ProjectToResidual(const Pass& pass, const Linear& proj, uint32_t dropout_site, Factor x,
                       const float* residual, float* y) {
  const int64_t rows = pass.rows();
  const DropoutArgs dropout = pass.Dropout(dropout_site);
  if (dropout.p == 0) {
    proj.Forward(pass, x, rows, {y, proj.out, residual});
    return;
  }
  proj.Forward(pass, x, rows, {y, proj.out});
  pass.kernels->dropout(y, rows * proj.out, 0, dropout);
  pass.kernels->add(y, residual, rows * proj.out);
}

const float* DropoutGradient(const Pass& pass, uint32_t site, const float* dy, int64_t C,
                             float* scratch) {
  const DropoutArgs dropout = pass.Dropout(site);
  if (dropout.p == 0) return dy;
  std::copy_n(dy, pass.rows() * C, scratch);
  pass.kernels->dropout(scratch, pass.rows() * C, 0, dropout);
  return scratch;
}

}  // namespace heed
