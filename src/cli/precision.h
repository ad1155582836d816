// --dtype of commands that only read a model: how the weights of products are kept, and what is
// computed with them.
#pragma once

#include <span>
#include <string>

#include "base/fields.h"
#include "model/gpt.h"
#include "model/parameter_loader.h"

namespace heed {

enum class Precision {
  kFile,  // as the file has them; blocks of few bits in whole numbers
  kF32,   // as the file has them, in float32
  kBf16,
  kQ8_0,
  kQ4_0,
};

std::span<const EnumName<Precision>> EnumNames(Precision);
inline constexpr const char* kPrecisionHelp =
    "weights and arithmetic of products; sums stay f32. f32 is exact for any file";

Weights WeightsOf(Precision precision);
// Of a model whose weights are WeightsOf(precision).
void SetArithmetic(Precision precision, Gpt* model);
// How many matrices could not be kept so; empty when none.
std::string PrecisionNote(Precision precision, const Gpt& model);

}  // namespace heed
