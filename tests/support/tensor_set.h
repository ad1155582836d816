// Tensors made in a test, as the files that people hand over.
#pragma once

#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/tensor_file.h"
#include "support/temporary_folder.h"

namespace heed {

struct Array {
  std::vector<int64_t> shape;
  std::vector<double> values;
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
      list.push_back({name, DType::kF64, array.shape, array.values.data(), nullptr});
      if (array.values.empty()) list.back().fill = [](int64_t, std::span<std::byte>) {};
    }
    const Status status = WriteSafetensors(path, list, settings, /*overwrite=*/true);
    if (!status) throw std::runtime_error(status.error().Message());
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
