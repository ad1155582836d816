// Tensors that somebody saved, whatever the format: .safetensors, .npz or .npy, told apart by
// their first bytes, or by the name's ending when these say nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "io/npz.h"
#include "io/safetensors.h"
#include "io/tensor_entry.h"

namespace heed {

class TensorFile {
 public:
  // Errors: those of SafetensorsFile and NpzFile; a Python pickle is refused with the way to save
  // safetensors instead.
  static Result<TensorFile> Open(const std::string& path);
  // The same from memory that outlives the result; `where` is named in errors.
  static Result<TensorFile> Parse(std::span<const std::byte> bytes, const std::string& where);

  const std::vector<TensorEntry>& tensors() const;
  const TensorEntry* Find(std::string_view name) const { return FindEntry(tensors(), name); }
  // safetensors' metadata, npz's strings, and every tensor of shape [] as text ("4", "1e-05",
  // "true"); metadata wins over a tensor of the same name.
  const std::map<std::string, std::string>& settings() const { return settings_; }

  // Row-major. Errors (kFormat): no such tensor; a dtype that is not of the kind asked for.
  Result<std::vector<float>> Floats(std::string_view name) const;
  Result<std::vector<double>> Doubles(std::string_view name) const;
  Result<std::vector<int64_t>> Integers(std::string_view name) const;

 private:
  using File = std::variant<SafetensorsFile, NpzFile>;
  explicit TensorFile(File file) : file_(std::move(file)) {}

  MappedFile mapped_;
  File file_;
  std::map<std::string, std::string> settings_;
};

}  // namespace heed
