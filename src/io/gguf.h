// GGUF, llama.cpp's file format (ggml-org/ggml, docs/gguf.md), versions 2 and 3: metadata of typed
// values, the tensors' names, shapes, types and places, then their bytes, each at a multiple of the
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "tensor/blocks.h"

namespace heed {

// Every integer type of the format is read as int64_t and written as its 32-bit type: unsigned, in
// arrays signed. Floats are read as double and written as float32.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  BlockType type = BlockType::kF32;
  std::vector<int64_t> shape;  // row-major: the file has it the other way round
  size_t begin = 0;            // of its bytes, from the file's start
  size_t size = 0;             // bytes
};

class GgufFile {
 public:
  // Errors: kIo as MappedFile::Open; kFormat: everything that does not stand inside the file or
  // that overlaps, names and keys that come twice, an alignment that is no power of two, a number
  // type that heed does not read, lists of lists.
  static Result<GgufFile> Open(const std::string& path);
  // The same from memory that outlives the result; `where` is named in errors.
  static Result<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& where);

  const std::string& where() const { return where_; }
  // In the order of the file's list.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* Find(std::string_view name) const;
  std::span<const std::byte> Bytes(const GgufTensor& tensor) const {
    return bytes_.subspan(tensor.begin, tensor.size);
  }
  // All numbers of the tensor, row-major.
  void Read(const GgufTensor& tensor, float* out) const;
  std::vector<float> Floats(const GgufTensor& tensor) const;

  // All values. They are read when they are asked for: a vocabulary's are some megabytes.
  std::map<std::string, GgufValue> Metadata() const;
  bool Has(const std::string& key) const { return metadata_.contains(key); }
  // Sets *out when the key is there. T is a type of GgufValue, or one that has views of the file in
  // place of strings. Error (kFormat): a value of another type, but a whole number is taken for a
  // double, too.
  template <class T>
  Status Get(const std::string& key, T* out) const;

 private:
  GgufFile() = default;
  Result<GgufValue> Value(const std::string& key, std::span<const std::byte> bytes) const;

  std::string where_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::span<const std::byte>> metadata_;  // type and value
};

struct GgufTensorToWrite {
  std::string name;
  BlockType type = BlockType::kF32;            // one that CanEncode; rows are whole blocks
  std::vector<int64_t> shape;                  // row-major
  std::function<std::vector<float>()> values;  // called once, when the tensor is written
};

// Writes version 3 through an AtomicFile, in the given order. Errors: kIo as AtomicFile.
Status WriteGguf(const std::string& path,
                 std::span<const std::pair<std::string, GgufValue>> metadata,
                 std::span<const GgufTensorToWrite> tensors, bool overwrite);

}  // namespace heed
