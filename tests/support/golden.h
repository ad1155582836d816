// The golden cases in tests/golden: numbers computed in float64 by an independent reference.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace heed {

struct Golden {
  SafetensorsFile file;

  static Golden Load(const std::string& name) {
    auto file = SafetensorsFile::Open(std::string(HEED_GOLDEN_DIR) + "/" + name + ".safetensors");
    if (!file) throw std::runtime_error(file.error().Message());
    return {std::move(*file)};
  }
  std::vector<double> Doubles(const std::string& name) const { return *file.Doubles(name); }
  std::vector<float> Floats(const std::string& name) const { return *file.Floats(name); }
  std::vector<int32_t> Tokens(const std::string& name) const {
    const std::vector<int64_t> wide = *file.Integers(name);
    return {wide.begin(), wide.end()};
  }
  bool Has(const std::string& name) const { return file.Find(name) != nullptr; }
  // A setting of the metadata, whatever its JSON type; "" when absent.
  std::string Text(const std::string& key) const {
    const auto entry = file.metadata().find(key);
    return entry == file.metadata().end() ? "" : entry->second;
  }
  nlohmann::json Json(const std::string& key) const { return nlohmann::json::parse(Text(key)); }
};

}  // namespace heed
