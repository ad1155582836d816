// The safetensors format (huggingface/safetensors): 8 bytes of little-endian header length, a JSON
// header of names, dtypes, shapes and offsets, then the tensors' bytes. A file is refused unless
// its tensors cover its bytes exactly, without holes, overlaps or a rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "io/tensor_entry.h"
#include "tensor/dtype.h"

namespace heed {

class SafetensorsFile {
 public:
  // Errors: kIo as MappedFile::Open, kFormat for every rule that the file breaks.
  static Result<SafetensorsFile> Open(const std::string& path);
  // The same from memory that outlives the result; `where` is named in errors.
  static Result<SafetensorsFile> Parse(std::span<const std::byte> bytes, std::string where);

  // In the order of their bytes.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* Find(std::string_view name) const { return FindEntry(tensors_, name); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The tensor's stored bytes, row-major, little-endian, of any alignment.
  std::span<const std::byte> Bytes(const TensorEntry& entry) const {
    return data_.subspan(entry.begin, entry.size);
  }
  // Errors (kFormat): no such tensor; a dtype that is not of the kind asked for.
  Result<std::vector<float>> Floats(std::string_view name) const;
  Result<std::vector<double>> Doubles(std::string_view name) const;
  Result<std::vector<int64_t>> Integers(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::string where_;
  MappedFile file_;
  std::span<const std::byte> data_;  // behind the header
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // Row-major elements of `dtype`; null when `fill` makes them.
  const void* data = nullptr;
  // Writes elements first, first + 1, ... until `out` is full. Called in order, piece by piece.
  std::function<void(int64_t first, std::span<std::byte> out)> fill;
};

// Writes through an AtomicFile. Tensors stand in the given order, but wide number types before
// narrow ones, so that each lies aligned; metadata by key: the same input gives the same bytes.
// transformers opens a model only when its metadata says {"format": "pt"}.
// Errors: kIo as AtomicFile; kRequest: a name given twice, reserved or not UTF-8; too large.
Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata, bool overwrite);

}  // namespace heed
