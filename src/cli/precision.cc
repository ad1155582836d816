#include "cli/precision.h"

#include <fmt/format.h>

#include <algorithm>

namespace heed {

std::span<const EnumName<Precision>> EnumNames(Precision) {
  static constexpr EnumName<Precision> kNames[] = {{Precision::kFile, "file"},
                                                   {Precision::kF32, "f32"},
                                                   {Precision::kBf16, "bf16"},
                                                   {Precision::kQ8_0, "q8_0"},
                                                   {Precision::kQ4_0, "q4_0"}};
  return kNames;
}

Weights WeightsOf(Precision precision) {
  return precision == Precision::kBf16   ? Weights::kBf16
         : precision == Precision::kQ8_0 ? Weights::kQ8_0
         : precision == Precision::kQ4_0 ? Weights::kQ4_0
                                         : Weights::kInPlace;
}

void SetArithmetic(Precision precision, Gpt* model) {
  const bool blocks = std::ranges::any_of(model->parameters().all(), [](const Parameter& p) {
    return !p.packed.empty() && p.packed.scaled();
  });
  model->set_arithmetic(precision == Precision::kBf16             ? Arithmetic::kBf16
                        : precision == Precision::kF32 || !blocks ? Arithmetic::kF32
                                                                  : Arithmetic::kInt8);
}

std::string PrecisionNote(Precision precision, const Gpt& model) {
  if (precision != Precision::kQ8_0 && precision != Precision::kQ4_0) return "";
  int64_t factors = 0, packed = 0;
  for (const Parameter& p : model.parameters().all()) {
    factors += p.factor();
    packed += p.factor() && !p.packed.empty() && p.packed.scaled();
  }
  if (packed == factors) return "";
  return fmt::format("{} of {} matrices in {}: the others have no whole blocks of 32", packed,
                     factors, NameOf(precision));
}

}  // namespace heed
