// Tensors made in a test, as the files that people hand over.
#pragma once

#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/tensor_file.h"
#include "support/temporary_folder.h"
#include "tensor/convert.h"

namespace heed {

struct Array {
  std::vector<int64_t> shape;
  std::vector<double> values;
  DType dtype = DType::kF64;  // as which it is written; a float dtype or I64
};

struct TensorSet {
  std::map<std::string, Array> tensors;
  std::map<std::string, std::string> settings;

  // Every tensor and setting of a file.
  static TensorSet Of(const TensorFile& file) {
    TensorSet set{{}, file.settings()};
    for (const TensorEntry& entry : file.tensors()) {
      set.tensors[entry.name] = {entry.shape, *file.Doubles(entry.name)};
    }
    return set;
  }

  Array& operator[](const std::string& name) { return tensors[name]; }

  void Rename(const std::string& from, const std::string& to) {
    tensors[to] = tensors.at(from);
    tensors.erase(from);
  }

  void Write(const std::string& path) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, array] : tensors) {
      list.push_back({name, array.dtype, array.shape, nullptr,
                      [&array = array](int64_t first, std::span<std::byte> out) {
                        Store(array, first, out);
                      }});
    }
    const Status status = WriteSafetensors(path, list, settings, /*overwrite=*/true);
    if (!status) throw std::runtime_error(status.error().Message());
  }

  // Elements first, first + 1, ... as bytes of the array's dtype.
  static void Store(const Array& array, int64_t first, std::span<std::byte> out) {
    const size_t n = out.size() / SizeOf(array.dtype);
    if (IsFloat(array.dtype)) {
      Encode(array.dtype, array.values.data() + first, n, out.data());
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      const auto value = static_cast<int64_t>(array.values[first + static_cast<int64_t>(i)]);
      std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
    }
  }

  // Through a file and back.
  TensorFile File() const {
    const TemporaryFolder folder;
    const std::string path = folder / "set.safetensors";
    Write(path);
    return *TensorFile::Open(path);
  }
};

}  // namespace heed
