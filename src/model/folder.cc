#include "model/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "base/json.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/config_json.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostJsonBytes = size_t{64} << 20;
constexpr std::string_view kPrefix = "transformer.";

std::string Inside(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The names of the files that hold a folder's weights.
Result<std::vector<std::string>> WeightFiles(const std::string& folder) {
  const std::string single = Inside(folder, "model.safetensors");
  const std::string index = Inside(folder, "model.safetensors.index.json");
  if (Exists(single) || !Exists(index)) return std::vector<std::string>{single};
  HEED_ASSIGN(const std::string text, ReadFile(index, kMostJsonBytes));
  HEED_ASSIGN(const nlohmann::json json, ParseJsonObject(text, index));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return Fail(ErrorKind::kFormat, index, "no weight_map",
                "a JSON object with a weight_map from tensor names to files");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    // A shard lies in the folder itself: no path may lead out of it.
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      return Fail(ErrorKind::kFormat, index,
                  "the file of " + tensor + " is " +
                      file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                  "the name of a file beside it");
    }
    names.insert(Inside(folder, file.get<std::string>().c_str()));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

// Buffers that older exporters stored beside the weights: masks and rotary frequencies.
bool IsKnownBuffer(std::string_view name) {
  return (name.starts_with("h.") &&
          (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))) ||
         name.ends_with(".rotary_emb.inv_freq");
}

Status CopyTensor(const SafetensorsFile& file, const TensorEntry& entry, const std::string& where,
                  Parameter* p) {
  if (entry.shape != p->shape) {
    return Fail(ErrorKind::kFormat, where + ": " + entry.name,
                fmt::format("shape [{}]", fmt::join(entry.shape, ", ")),
                fmt::format("[{}] ({})", fmt::join(p->shape, ", "), p->axes),
                "config.json and the weights are of two models");
  }
  if (entry.dtype == DType::kF32) {
    std::memcpy(p->data, file.Bytes(entry).data(), entry.size);
    return {};
  }
  HEED_ASSIGN(const std::vector<float> values, file.Floats(entry.name));
  std::copy(values.begin(), values.end(), p->data);
  return {};
}

}  // namespace

Status LoadParameters(const std::string& folder, Gpt* model) {
  HEED_ASSIGN(const std::vector<std::string> paths, WeightFiles(folder));
  ParameterSet& parameters = model->parameters();
  std::set<const Parameter*> loaded;
  // A tied model's head, where the file has one: it may come before the embedding.
  std::vector<float> head;
  std::string head_place;
  for (const std::string& path : paths) {
    HEED_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
    for (const TensorEntry& entry : file.tensors()) {
      std::string_view name = entry.name;
      if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
      Parameter* p = parameters.Find(name);
      if (p == nullptr && name == "lm_head.weight" && model->config().tied) {
        HEED_ASSIGN(head, file.Floats(entry.name));
        head_place = path + ": " + entry.name;
        continue;
      }
      if (p == nullptr && IsKnownBuffer(name)) continue;
      if (p == nullptr) {
        return Fail(ErrorKind::kFormat, path + ": " + entry.name,
                    "a tensor that the model of config.json does not have", "",
                    "config.json and the weights are of two models");
      }
      if (!loaded.insert(p).second) {
        return Fail(ErrorKind::kFormat, path + ": " + entry.name, "a second tensor for " + p->name,
                    "one");
      }
      p->file_name = entry.name;
      HEED_TRY(CopyTensor(file, entry, path, p));
    }
  }
  for (const Parameter& p : parameters.all()) {
    if (loaded.contains(&p)) continue;
    return Fail(ErrorKind::kFormat, paths.front(), "no tensor " + p.name,
                fmt::format("one of shape [{}]", fmt::join(p.shape, ", ")),
                "config.json and the weights are of two models");
  }
  const Parameter& embedding = parameters.all().front();
  const std::span<const float> shared(embedding.data, static_cast<size_t>(embedding.elements));
  if (!head_place.empty() && !std::ranges::equal(head, shared)) {
    return Fail(ErrorKind::kFormat, head_place, "a head that differs from " + embedding.name,
                "the same numbers, for they are tied",
                "set tie_word_embeddings (or tied) to false in config.json");
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& folder) {
  const std::string path = Inside(folder, "tokenizer.json");
  HEED_ASSIGN(const std::string text, ReadFile(path, kMostJsonBytes));
  return ParseTokenizerJson(text, path);
}

Result<LoadedModel> LoadModel(const std::string& folder, const Kernels& kernels) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Fail(ErrorKind::kIo, folder, Exists(folder) ? "a file" : "nothing",
                "a model's folder with config.json and model.safetensors");
  }
  const std::string config_path = Inside(folder, "config.json");
  HEED_ASSIGN(const std::string config_text, ReadFile(config_path, kMostJsonBytes));
  HEED_ASSIGN(const ModelConfig config, ParseModelConfig(config_text, config_path));
  LoadedModel loaded;
  loaded.tokenizer = LoadTokenizer(folder);
  if (loaded.tokenizer && (*loaded.tokenizer)->vocab_size() > config.vocab_size) {
    return Fail(ErrorKind::kFormat, Inside(folder, "tokenizer.json"),
                fmt::format("{} tokens", (*loaded.tokenizer)->vocab_size()),
                fmt::format("at most {}, the rows of the embedding", config.vocab_size),
                "this vocabulary belongs to another model");
  }
  HEED_ASSIGN(loaded.model, Gpt::Create(config, kernels));
  HEED_TRY(LoadParameters(folder, loaded.model.get()));
  return loaded;
}

Status MakeFolder(const std::string& folder) {
  std::error_code error, unseen;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder, unseen)) {
    return Fail(ErrorKind::kIo, folder, error ? error.message() : "a file", "a folder",
                "choose another path");
  }
  return {};
}

Status SaveParameters(const std::string& path, const Gpt& model, bool overwrite) {
  std::vector<TensorToWrite> tensors;
  for (const Parameter& p : model.parameters().all()) {
    tensors.push_back({p.name, DType::kF32, p.shape, p.data});
  }
  return WriteSafetensors(path, tensors, {{"format", "pt"}}, overwrite);
}

Status SaveModel(const std::string& folder, const Gpt& model, const Tokenizer* tokenizer,
                 bool overwrite) {
  HEED_TRY(MakeFolder(folder));
  const std::string config = ModelConfigJson(model.config());
  const std::string_view config_piece = config;
  HEED_TRY(WriteFileAtomically(Inside(folder, "config.json"), {&config_piece, 1}, overwrite));
  if (tokenizer != nullptr) {
    const std::string json = tokenizer->Json();
    const std::string_view piece = json;
    HEED_TRY(WriteFileAtomically(Inside(folder, "tokenizer.json"), {&piece, 1}, overwrite));
  }
  return SaveParameters(Inside(folder, "model.safetensors"), model, overwrite);
}

}  // namespace heed
