// The parameters of a model by name, each with named axes, shape, initialisation and, in training,
// a gradient. All lie in one block of memory in the order in which they were added.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace heed {

enum class Init {
  kNormal,    // normal, standard deviation 0.02
  kResidual,  // normal, 0.02 / sqrt(2 · n_layer): projections that write to the residual stream
  kOnes,
  kZeros,
};

struct Parameter {
  std::string name;       // as in the model's file, without prefix
  std::string file_name;  // as in the file that it was loaded from
  std::string axes;       // named axes, e.g. "in out"
  std::vector<int64_t> shape;
  Init init;
  int64_t elements = 0;
  int64_t offset = 0;  // in floats, from the start of the block
  float* data = nullptr;
  float* grad = nullptr;
  // For inference: what Kernels::round_b made of data as the right side of its layer's product, or
  // null.
  const float* rounded = nullptr;

  // nanoGPT's rule: weight decay touches tensors of two and more dimensions.
  bool decayed() const { return shape.size() >= 2; }
  // The matrix of a linear layer: no embedding, no table of positions, no head.
  bool linear() const { return axes == "in out" || axes == "out in"; }
  // Of a fused "in out" matrix: the widths of the maps that lie side by side in it. Else empty.
  std::vector<int64_t> maps = {};
};

class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // The pointer stays valid for the set's life.
  Parameter* Add(std::string name, std::string axes, std::vector<int64_t> shape, Init init);

  Status Allocate();
  // Error: not enough memory.
  Status AllocateGradients();
  bool has_gradients() const { return gradients_.data() != nullptr; }

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* Find(std::string_view name);

  // Numbers in the model, and floats in the block with its padding.
  int64_t elements() const { return elements_; }
  int64_t block_elements() const { return block_elements_; }
  // The blocks themselves, block_elements() long; null until allocated.
  const float* values() const { return values_.floats(); }
  float* gradients() { return gradients_.floats(); }

 private:
  std::deque<Parameter> parameters_;
  int64_t elements_ = 0;
  int64_t block_elements_ = 0;
  Buffer values_, gradients_;
};

}  // namespace heed
