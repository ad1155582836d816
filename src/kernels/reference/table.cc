#include "kernels/kernels.h"
#include "kernels/reference/adamw.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/cross_entropy.h"
#include "kernels/reference/dropout.h"
#include "kernels/reference/elementwise.h"
#include "kernels/reference/embedding.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/norm.h"
#include "kernels/reference/rope.h"
#include "kernels/reference/swiglu.h"

namespace heed {

const Kernels& ReferenceKernels() {
  static const Kernels kernels = {
      "reference",
      reference::Matmul<float>,
      reference::NormForward<float>,
      reference::NormApply<float>,
      reference::NormBackward<float>,
      reference::Rope<float>,
      reference::AttentionForward<float>,
      reference::AttentionBackward<float>,
      reference::SwigluForward<float>,
      reference::SwigluBackward<float>,
      reference::EmbeddingForward<float>,
      reference::EmbeddingBackward<float>,
      reference::CrossEntropy<float>,
      reference::Dropout<float>,
      reference::Add<float>,
      reference::ColumnSum<float>,
      reference::SumSquares<float>,
      reference::Adamw<float>,
  };
  return kernels;
}

}  // namespace heed
