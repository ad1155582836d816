// Lets `heed diagnose --run ./program` ask an attention layer written in C++: reads the question,
// writes the answer, and needs nothing but the standard library.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace heed_live {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

struct Question {
  std::map<std::string, Tensor> tensors;        // x, q_proj.weight [out, in], ...
  std::map<std::string, std::string> settings;  // n_head, mode, ...

  int64_t Size(const std::string& name) const { return std::atoll(settings.at(name).c_str()); }
  // "5,1,1" as numbers.
  std::vector<int64_t> Chunks() const {
    std::vector<int64_t> chunks;
    const auto found = settings.find("chunks");
    std::istringstream text(found == settings.end() ? "" : found->second);
    for (std::string word; std::getline(text, word, ',');) chunks.push_back(std::stoll(word));
    return chunks;
  }
};

namespace internal {

inline std::string TextFrom(const std::string& json, size_t* at) {
  const size_t begin = json.find('"', *at) + 1, end = json.find('"', begin);
  *at = end + 1;
  return json.substr(begin, end - begin);
}

inline std::vector<int64_t> NumbersFrom(const std::string& json, size_t* at) {
  const size_t begin = json.find('[', *at) + 1, end = json.find(']', begin);
  *at = end + 1;
  std::vector<int64_t> numbers;
  std::istringstream text(json.substr(begin, end - begin));
  for (std::string word; std::getline(text, word, ',');) numbers.push_back(std::stoll(word));
  return numbers;
}

}  // namespace internal

// A file as heed writes it: float32 tensors, no escapes in its texts.
inline Question Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const std::string json = bytes.substr(8, length);
  Question question;
  for (size_t at = 0; json.find('"', at) != std::string::npos;) {
    const std::string name = internal::TextFrom(json, &at);
    if (name == "__metadata__") {
      const size_t end = json.find('}', at);
      while (json.find('"', at) < end) {
        const std::string key = internal::TextFrom(json, &at);
        question.settings[key] = internal::TextFrom(json, &at);
      }
      continue;
    }
    // {"dtype":"F32","shape":[..],"data_offsets":[first,last]}, whatever their order.
    Tensor tensor;
    std::vector<int64_t> range;
    for (int entry = 0; entry < 3; ++entry) {
      const std::string key = internal::TextFrom(json, &at);
      if (key == "dtype") internal::TextFrom(json, &at);
      if (key == "shape") tensor.shape = internal::NumbersFrom(json, &at);
      if (key == "data_offsets") range = internal::NumbersFrom(json, &at);
    }
    tensor.values.resize(static_cast<size_t>(range[1] - range[0]) / sizeof(float));
    std::memcpy(tensor.values.data(), bytes.data() + 8 + length + range[0],
                static_cast<size_t>(range[1] - range[0]));
    question.tensors[name] = std::move(tensor);
  }
  return question;
}

// `modes`: what the program has besides eval, "cached train".
inline void Write(const std::string& path, const std::map<std::string, Tensor>& tensors,
                  const std::string& modes = "") {
  std::ostringstream json;
  std::string data;
  json << R"({"__metadata__":{"modes":")" << modes << "\"}";
  for (const auto& [name, tensor] : tensors) {
    json << ",\"" << name << R"(":{"dtype":"F32","shape":[)";
    for (size_t i = 0; i < tensor.shape.size(); ++i) json << (i > 0 ? "," : "") << tensor.shape[i];
    const size_t size = tensor.values.size() * sizeof(float);
    json << "],\"data_offsets\":[" << data.size() << "," << data.size() + size << "]}";
    data.append(reinterpret_cast<const char*>(tensor.values.data()), size);
  }
  json << "}";
  const std::string text = json.str();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << text << data;
}

}  // namespace heed_live
