// The memory of a pass, planned before it runs: layers declare every tensor they touch by name,
// named axes and shape; one block then holds them all, and its size is known before a byte is
// allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace heed {

// What a pass keeps for its backward pass.
enum class Keep {
  kNothing,  // inference
  kInputs,   // the inputs of blocks, which compute everything else a second time (Chen et al. 2016)
  kAll,
};

enum class Lifetime {
  kInput,    // of a block: kept from forward to backward
  kSaved,    // kept too, unless blocks compute it a second time
  kForward,  // shares memory as scratch does, with tensors of the backward passes of earlier layers
  kScratch,  // shared by all layers that declare the same key
};

struct PlannedTensor {
  std::string name;
  std::string axes;  // named axes, e.g. "B T C"
  std::vector<int64_t> shape;
  Lifetime lifetime;
  size_t block;  // which memory block it views
  DType dtype = DType::kF32;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
};

// A tensor of the computation without memory of its own: a view, whose element i, j, .. is element
// offset + i·strides[0] + j·strides[1] + .. of the planned tensor `of`; or one that kernels compute
// without ever holding it whole.
struct DerivedTensor {
  std::string name;
  std::string axes;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // none when it is never held
  std::optional<size_t> of;      // index in Plan::tensors()
  int64_t offset = 0;
  size_t place = 0;  // how many planned tensors were declared before it

  int64_t elements() const;
};

class Plan {
 public:
  // Tensors that need not be kept are scratch too. With `rounds`, products round their factors to
  // bfloat16, and layers may hold what only products read so.
  explicit Plan(Keep keep, bool rounds = false) : keep_(keep), rounds_(rounds) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  Keep keep() const { return keep_; }
  bool training() const { return keep_ != Keep::kNothing; }
  bool rounds() const { return rounds_; }
  // Whether a tensor has memory of its own.
  bool Keeps(Lifetime lifetime) const;

  // Declares a float32 tensor; *data points to its memory once Allocate has run. Tensors of one key
  // that are not kept share memory, at the largest size declared.
  void Add(float** data, const std::string& name, std::string_view key, std::string_view axes,
           std::vector<int64_t> shape, Lifetime lifetime);
  // The same in bfloat16.
  void Add(uint16_t** data, const std::string& name, std::string_view key, std::string_view axes,
           std::vector<int64_t> shape, Lifetime lifetime);

  // Declares a view on the tensor that was added last.
  void AddView(const std::string& name, std::string_view axes, std::vector<int64_t> shape,
               std::vector<int64_t> strides, int64_t offset);
  // Declares a tensor that is never held.
  void AddUnheld(const std::string& name, std::string_view axes, std::vector<int64_t> shape);

  // The size of the whole block.
  size_t bytes() const;
  // Allocates, zero-filled, and sets every pointer. Error: not enough memory.
  Status Allocate();

  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  const std::vector<DerivedTensor>& derived() const { return derived_; }
  // The memory of tensors()[i], of which that in bfloat16 is to be decoded; null until allocated.
  const float* data(size_t i) const {
    return starts_.empty() ? nullptr : starts_[tensors_[i].block];
  }

 private:
  void Add(PlannedTensor tensor, std::string_view key);

  Keep keep_;
  bool rounds_;
  std::vector<PlannedTensor> tensors_;
  std::vector<std::variant<float**, uint16_t**>> targets_;
  std::vector<int64_t> block_elements_;
  std::unordered_map<std::string, size_t> shared_;  // key -> block
  Buffer buffer_;
  std::vector<float*> starts_;  // of the blocks
  std::vector<DerivedTensor> derived_;
};

}  // namespace heed
