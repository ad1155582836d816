// The description of a model for Kernels::narrow.
#pragma once

#include <memory>
#include <vector>

#include "kernels/narrow.h"
#include "model/config.h"
#include "nn/block.h"
#include "nn/embedding.h"
#include "nn/head.h"
#include "tensor/parameters.h"

namespace heed {

// Null where a part of the model is not among NarrowGpt's, or where it is so wide that operations
// over rows are faster.
std::shared_ptr<const NarrowGpt> DescribeNarrow(const ModelConfig& config,
                                                const Embedding& embedding,
                                                const std::vector<Block>& blocks, const Head& head,
                                                const ParameterSet& parameters);

// Whether passes over B sequences are worth it, which have to fill lanes.
bool NarrowBatch(int64_t B);
// Whether passes over T positions are, which keep T² / 2 weights for each head.
bool NarrowLength(int64_t T);

}  // namespace heed
