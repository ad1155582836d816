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
  static constexpr Kernels kTable = {
      .name = "reference",
      .matmul = reference::Matmul<float>,
      .norm_forward = reference::NormForward<float>,
      .norm_apply = reference::NormApply<float>,
      .norm_backward = reference::NormBackward<float>,
      .rope = reference::Rope<float>,
      .attention_forward = reference::AttentionForward<float>,
      .attention_backward = reference::AttentionBackward<float>,
      .swiglu_forward = reference::SwigluForward<float>,
      .swiglu_backward = reference::SwigluBackward<float>,
      .embedding_forward = reference::EmbeddingForward<float>,
      .embedding_backward = reference::EmbeddingBackward<float>,
      .cross_entropy = reference::CrossEntropy<float>,
      .dropout = reference::Dropout<float>,
      .add = reference::Add<float>,
      .column_sum = reference::ColumnSum<float>,
      .column_sum_bf16 = reference::ColumnSumBf16,
      .sum_squares = reference::SumSquares<float>,
      .adamw = reference::Adamw<float>,
      .narrow = nullptr,
  };
  return kTable;
}

}  // namespace heed
