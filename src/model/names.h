// What other programs call the parameters of a model, and in which order they keep the numbers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "tensor/parameters.h"

namespace heed {

// Whose rows a tensor's are, where they follow the pairs of rotary positions.
enum class Rows { kPlain, kQueryHeads, kKeyHeads };

// One parameter of a family under its names in Hugging Face's folders (heed's own), in GGUF and in
// Meta's files. '#' stands for the layer; no name: the format does not have it.
struct ParameterNames {
  std::string_view heed;
  std::string_view gguf;
  std::string_view meta;
  Rows rows = Rows::kPlain;
};

// The whole map of a family; empty for Family::kHeed, whose mixes no other format names.
std::span<const ParameterNames> NamesOf(Family family);

enum class Naming { kGguf, kMeta };

// What the parameter `name` is called there; nothing when it has no name there.
std::optional<std::string> NameIn(Naming naming, Family family, std::string_view name);

// How a file keeps the numbers.
struct FileOrder {
  bool out_in = false;       // linear layers are all [out, in]
  bool interleaved = false;  // rows of q and k heads: pair i is (2i, 2i + 1), not (i, i + D/2)
};

// The shape of `p` there.
std::vector<int64_t> ShapeIn(const FileOrder& order, const Parameter& p);

// Whether the numbers of `p` stand there as in memory.
bool IsAsInMemory(const FileOrder& order, const ModelConfig& config, const Parameter& p);

// Whether the rows of `p` stand there as the columns of its product, each whole.
bool HasColumns(const FileOrder& order, const Parameter& p);
// For each row of `p` in memory the one in the file; empty when they are the same.
std::vector<int64_t> FileRows(const FileOrder& order, const ModelConfig& config,
                              const Parameter& p);

// Fills `to` with the numbers of `p` at `from` brought from a file's order into memory's, or the
// other way. The arrays do not overlap.
void FromFileOrder(const FileOrder& order, const ModelConfig& config, const Parameter& p,
                   const float* from, float* to);
void ToFileOrder(const FileOrder& order, const ModelConfig& config, const Parameter& p,
                 const float* from, float* to);

}  // namespace heed
