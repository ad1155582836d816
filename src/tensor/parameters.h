// The parameters of a model by name, each with named axes, shape, initialisation and, in training,
// a gradient. Those of a model that learns lie in one block of memory in the order in which they
// were added; those that are only read may stay in the pages of the file that holds them, or be
// packed in few bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "tensor/packed.h"

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
  int64_t offset = 0;             // in floats, from the start of the block
  const float* values = nullptr;  // what layers read; null where only `packed` has the numbers
  float* data = nullptr;          // the same to be written; null where they are only read
  float* grad = nullptr;
  bool shares_grad = false;  // with others, one after another: see AllocateGradients
  PackedB packed;            // for products, if not empty: the right side [K, N], in few bits

  // nanoGPT's rule: weight decay touches tensors of two and more dimensions.
  bool decayed() const { return shape.size() >= 2; }
  // The matrix of a linear layer: no embedding, no table of positions, no head.
  bool linear() const { return axes == "in out" || axes == "out in"; }
  // The right side of a product: b(k, n), n along the rows of the shape or, as in "in out", k.
  bool factor() const { return linear() || axes == "V C"; }
  int64_t N() const { return axes == "in out" ? shape[1] : shape[0]; }
  int64_t K() const { return axes == "in out" ? shape[0] : shape[1]; }
  // Of a fused "in out" matrix: the widths of the maps that lie side by side in it. Else empty.
  std::vector<int64_t> maps = {};
  std::vector<int64_t> rows = {};  // the order of the stored ones, where `packed` has one
};

class ParameterSet {
 public:
  ParameterSet() = default;
  ~ParameterSet();
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // The pointer stays valid for the set's life.
  Parameter* Add(std::string name, std::string axes, std::vector<int64_t> shape, Init init);

  // The block of all parameters, zeros. Error: not enough memory.
  Status Allocate();
  // Memory of its own for one parameter, zeros. Error: not enough memory.
  Status Allocate(Parameter* p);
  // Memory for a factor packed in `type`, which the caller fills. Error: not enough memory.
  Result<std::byte*> AllocatePacked(Parameter* p, BlockType type);
  // Packs the factors that wait for it and gives back the memory of the files' pages that they had.
  // Error: not enough memory.
  Status PackWaiting();
  // Lets the parameter be read where it lies, in memory that `Keep` keeps alive.
  static void Borrow(Parameter* p, const float* values);
  void Keep(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }
  // Makes pages of files ready to be read, and has them given back with the set, all cores at once:
  // either takes the system as long as reading them.
  void UsePages(std::vector<std::span<const std::byte>> pages);
  // With `share_linear` the weights of linear layers have one memory for their gradients, one after
  // another. Error: not enough memory.
  Status AllocateGradients(bool share_linear = false);
  bool has_gradients() const { return gradients_.data() != nullptr; }

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* Find(std::string_view name);

  // Numbers in the model, and floats in the block with its padding.
  int64_t elements() const { return elements_; }
  int64_t block_elements() const { return block_elements_; }
  int64_t gradient_elements() const { return gradient_elements_; }  // floats, with padding
  // The blocks themselves, block_elements() long (gradients: where none are shared); null until
  // allocated.
  const float* values() const { return values_.floats(); }
  float* gradients() { return gradients_.floats(); }

 private:
  std::deque<Parameter> parameters_;
  int64_t elements_ = 0;
  int64_t block_elements_ = 0;
  int64_t gradient_elements_ = 0;
  Buffer values_, gradients_;
  std::deque<Buffer> singles_;
  std::deque<Buffer> arenas_;  // of packed factors
  size_t arena_used_ = 0;      // of the last
  std::vector<std::shared_ptr<const void>> owners_;
  std::vector<std::span<const std::byte>> pages_;  // what UsePages was given, in pieces
};

}  // namespace heed
