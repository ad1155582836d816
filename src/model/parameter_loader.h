// Fills a model's parameters from the tensors of a file, whatever its format, and says of every
// tensor that does not fit what was expected and what was found.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gpt.h"
#include "model/names.h"
#include "tensor/blocks.h"

namespace heed {

// Where the numbers of a loaded model lie.
enum class Weights {
  kOwned,  // in memory of the model, to be changed
  // Never to be changed: in the pages of their file where they can be read as they stand, as floats
  // can and rows in bf16, q8_0 or q4_0, which wait there to be packed (ParameterSet::PackWaiting).
  kInPlace,
  // The same, but weights of products are packed in this type, where it can hold them.
  kBf16,
  kQ8_0,
  kQ4_0,
};

// The type in which weights of products are packed whatever their file has; nothing when none is.
std::optional<BlockType> PackedType(Weights weights);

// A tensor that some file holds.
struct SourceTensor {
  std::string place;  // names the file in errors
  std::string name;
  std::vector<int64_t> shape;
  BlockType type = BlockType::kF32;
  std::span<const std::byte> bytes;  // row-major numbers of `type`; empty when only `read` has them
  std::function<Status(float* out)> read;  // all its numbers, row-major; null when `bytes` has them

  Status Read(float* out) const;
};

// What became of a file's tensors.
struct LoadReport {
  std::vector<std::string> used;    // in the order of the file
  std::vector<std::string> unused;  // known and not needed: masks, angles, a tied head's copy
  // The number type of all matrices; f32 when they differ or none is a plain float.
  BlockType type = BlockType::kF32;
  BlockType vector_type = BlockType::kF32;  // the same of gains and biases
};

class ParameterLoader {
 public:
  // `where` names the whole in errors. But with kOwned the model has no numbers yet, and keeps
  // alive what `bytes` of its tensors are views of.
  ParameterLoader(Gpt* model, std::string where, Weights weights)
      : model_(model), where_(std::move(where)), weights_(weights) {}

  void set_order(const FileOrder& order) { order_ = order; }

  // Fills `p` from the tensor. A misfit is kept for Finish; error: numbers that cannot be read.
  Status Fill(Parameter* p, const SourceTensor& tensor);
  // A head in the file of a model whose head is tied: has to be equal to the embedding.
  Status AddTiedHead(const SourceTensor& tensor);
  void AddUnused(const std::string& name) { report_.unused.push_back(name); }
  void AddSurplus(const std::string& name);

  // Errors (kFormat): any surplus, missing, doubled or misshapen tensor, all of them named.
  Result<LoadReport> Finish();

 private:
  // The type in which the numbers of `p` are packed; nothing when they are not.
  std::optional<BlockType> TypeOf(const Parameter& p, const SourceTensor& tensor) const;
  Status Pack(Parameter* p, const SourceTensor& tensor, BlockType type);
  Status CheckTiedHead() const;

  Gpt* model_;
  std::string where_;
  Weights weights_;
  FileOrder order_;
  std::set<const Parameter*> filled_;
  std::vector<std::span<const std::byte>> in_place_;
  std::vector<std::string> misfits_;
  std::set<BlockType> types_, vector_types_;  // of matrices; of gains and biases
  std::vector<float> head_;                   // a tied model's, where the file has one
  std::string head_place_;
  LoadReport report_;
};

// Fills a model from tensors under another program's names; a tensor for which `is_unused` answers
// true is passed over.
Result<LoadReport> LoadNamed(const std::vector<SourceTensor>& tensors, Naming naming,
                             const FileOrder& order,
                             const std::function<bool(std::string_view name)>& is_unused,
                             const std::string& where, Weights weights, Gpt* model);

// A model for a loader to fill, with memory for its numbers if they are kOwned.
Result<std::unique_ptr<Gpt>> EmptyModel(const ModelConfig& config, const Kernels& kernels,
                                        Weights weights);

}  // namespace heed
