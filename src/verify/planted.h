// Faults that people have made in causal self-attention and small GPTs, planted on purpose into a
// table of operations: what a check is worth shows when one of them is there. Each is planted in
// the forward and the backward pass alike, as automatic differentiation would carry it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/kernels.h"

namespace heed {

struct PlantedFault {
  std::string_view name;
  std::string_view what;  // what is wrong, in a few words
  void (*plant)(Kernels* kernels);
};

std::span<const PlantedFault> PlantedFaults();

// `base` with the fault in it, for models of two positions and more: faulty rotations read their
// frequencies off the first two rows of the table. Error: an unknown name, with the nearest and all
// known ones.
Result<Kernels> PlantedKernels(const std::string& name, const Kernels& base);

}  // namespace heed
