#include "model/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/config_json.h"
#include "model/names.h"
#include "tensor/convert.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostJsonBytes = size_t{64} << 20;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string Inside(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The paths of the files that hold a folder's weights.
Result<std::vector<std::string>> WeightFiles(const std::string& folder) {
  const std::string single = Inside(folder, kSingle), index = Inside(folder, kIndex);
  if (Exists(single) || !Exists(index)) return std::vector<std::string>{single};
  HEED_ASSIGN(const std::string text, ReadFile(index, kMostJsonBytes));
  HEED_ASSIGN(std::vector<std::string> names, ParseShardIndex(text, index));
  for (std::string& name : names) name = Inside(folder, name.c_str());
  return names;
}

// A shard lies in the folder itself: no path may lead out of it, nor to the index again.
bool IsShardName(std::string_view name) {
  return name.find('/') == std::string_view::npos && name.ends_with(".safetensors");
}

// Buffers that older exporters stored beside the weights: masks and rotary frequencies.
bool IsKnownBuffer(std::string_view name) {
  return (name.starts_with("h.") &&
          (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))) ||
         name.ends_with(".rotary_emb.inv_freq");
}

// Without what wrappers put before a name: torch.compile, DataParallel, the model around the
// layers.
std::string_view CoreName(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"_orig_mod.", "module.", "transformer.", "model."};
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view prefix : kPrefixes) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      found = true;
    }
  }
  return name;
}

SourceTensor Source(const SafetensorsFile& file, const TensorEntry& entry,
                    const std::string& path) {
  SourceTensor tensor{path, entry.name, entry.shape};
  if (entry.dtype == DType::kF16) tensor.type = BlockType::kF16;
  if (entry.dtype == DType::kBF16) tensor.type = BlockType::kBF16;
  tensor.read = [&file, &entry, path](float* out) -> Status {
    if (!IsFloat(entry.dtype)) {
      return Fail(ErrorKind::kFormat, path + ": tensor " + Quoted(entry.name),
                  std::string(NameOf(entry.dtype)), "F64, F32, F16 or BF16");
    }
    const std::span<const std::byte> bytes = file.Bytes(entry);
    Decode(entry.dtype, bytes.data(), bytes.size() / SizeOf(entry.dtype), out);
    return {};
  };
  return tensor;
}

// nanoGPT and minGPT keep GPT-2's linear layers as torch.nn.Linear does, [out, in]. The fused
// projection is the one layer that is never square.
bool IsOutIn(const std::vector<SourceTensor>& tensors, const Gpt& model) {
  const Parameter* fused = nullptr;
  for (const Parameter& p : model.parameters().all()) {
    if (p.name == "h.0.attn.c_attn.weight") fused = &p;
  }
  return fused != nullptr && std::ranges::any_of(tensors, [&](const SourceTensor& t) {
           return CoreName(t.name) == fused->name && t.shape != fused->shape &&
                  t.shape == ShapeIn({.out_in = true}, *fused);
         });
}

}  // namespace

Result<std::vector<std::string>> ParseShardIndex(std::string_view text, const std::string& where) {
  HEED_ASSIGN(const nlohmann::json json, ParseJsonObject(text, where));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return Fail(ErrorKind::kFormat, where, "no weight_map",
                "a JSON object with a weight_map from tensor names to files");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!IsShardName(name)) {
      return Fail(ErrorKind::kFormat, where,
                  "the file of " + Quoted(tensor) + " is " +
                      file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                  "the name of a .safetensors file beside it");
    }
    names.insert(name);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<LoadReport> LoadParameters(const std::string& folder, Gpt* model) {
  HEED_ASSIGN(const std::vector<std::string> paths, WeightFiles(folder));
  std::deque<SafetensorsFile> files;  // whose elements stay where they are
  std::vector<SourceTensor> tensors;
  for (const std::string& path : paths) {
    HEED_ASSIGN(SafetensorsFile file, SafetensorsFile::Open(path));
    files.push_back(std::move(file));
    for (const TensorEntry& entry : files.back().tensors()) {
      tensors.push_back(Source(files.back(), entry, path));
    }
  }
  std::map<std::string_view, Parameter*> parameters;
  for (Parameter& p : model->parameters().all()) parameters[CoreName(p.name)] = &p;
  ParameterLoader loader(model, paths.size() == 1 ? paths.front() : folder);
  loader.set_order({.out_in = IsOutIn(tensors, *model)});
  for (const SourceTensor& tensor : tensors) {
    const std::string_view name = CoreName(tensor.name);
    if (const auto found = parameters.find(name); found != parameters.end()) {
      HEED_TRY(loader.Fill(found->second, tensor));
    } else if (name == "lm_head.weight" && model->config().tied) {
      HEED_TRY(loader.AddTiedHead(tensor));
    } else if (IsKnownBuffer(name)) {
      loader.AddUnused(tensor.name);
    } else {
      loader.AddSurplus(tensor.name);
    }
  }
  return loader.Finish();
}

Result<LoadedModel> LoadFolder(const std::string& folder, const Kernels& kernels) {
  const std::string config_path = Inside(folder, "config.json");
  HEED_ASSIGN(const std::string config_text, ReadFile(config_path, kMostJsonBytes));
  HEED_ASSIGN(const ModelConfig config, ParseModelConfig(config_text, config_path));
  LoadedModel loaded;
  const std::string tokenizer_path = Inside(folder, "tokenizer.json");
  loaded.tokenizer = OpenTokenizer(folder);
  HEED_TRY(CheckVocabulary(loaded.tokenizer, config, tokenizer_path));
  HEED_ASSIGN(loaded.model, Gpt::Create(config, kernels));
  HEED_ASSIGN(loaded.report, LoadParameters(folder, loaded.model.get()));
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

namespace {

// One file of weights in the making.
struct Shard {
  std::string name = "model.safetensors";
  std::vector<TensorToWrite> tensors;
  int64_t bytes = 0;
};

TensorToWrite ToWrite(const Parameter& p, DType dtype) {
  if (dtype == DType::kF32) return {p.name, dtype, p.shape, p.data};
  TensorToWrite tensor{p.name, dtype, p.shape};
  tensor.fill = [data = p.data, dtype](int64_t first, std::span<std::byte> out) {
    Encode(dtype, data + first, out.size() / SizeOf(dtype), out.data());
  };
  return tensor;
}

// In the order of the parameters, as many in each as fit; at least one.
std::vector<Shard> CutShards(const Gpt& model, const SaveSettings& settings) {
  std::vector<Shard> shards(1);
  for (const Parameter& p : model.parameters().all()) {
    const DType dtype =
        p.shape.size() > 1 ? settings.dtype : settings.vector_dtype.value_or(settings.dtype);
    const int64_t bytes = p.elements * static_cast<int64_t>(SizeOf(dtype));
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > settings.shard_bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(ToWrite(p, dtype));
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; shards.size() > 1 && i < shards.size(); ++i) {
    shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

Status WriteText(const std::string& path, std::string_view text, bool overwrite) {
  return WriteFileAtomically(path, {&text, 1}, overwrite);
}

// Hugging Face's index of a model in several files.
Status WriteIndex(const std::string& folder, const std::vector<Shard>& shards, bool overwrite) {
  int64_t total = 0;
  nlohmann::ordered_json map;
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const TensorToWrite& tensor : shard.tensors) map[tensor.name] = shard.name;
  }
  const nlohmann::ordered_json json = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return WriteText(Inside(folder, kIndex), json.dump(2) + "\n", overwrite);
}

// Writes the weights, and sees to it that no weights of an earlier model in other files are read
// with them or in their place.
Status WriteShards(const std::string& folder, const std::vector<Shard>& shards, bool overwrite) {
  const bool single = shards.size() == 1;
  const std::string other = Inside(folder, single ? kIndex : kSingle);
  HEED_TRY(CheckNothingAt(other, overwrite));
  for (const Shard& shard : shards) {
    HEED_TRY(WriteSafetensors(Inside(folder, shard.name.c_str()), shard.tensors, {{"format", "pt"}},
                              overwrite));
  }
  if (!single) HEED_TRY(WriteIndex(folder, shards, overwrite));
  std::error_code error;
  fs::remove(other, error);
  return {};
}

}  // namespace

Status SaveParameters(const std::string& path, const Gpt& model, bool overwrite) {
  std::vector<TensorToWrite> tensors;
  for (const Parameter& p : model.parameters().all()) tensors.push_back(ToWrite(p, DType::kF32));
  return WriteSafetensors(path, tensors, {{"format", "pt"}}, overwrite);
}

Status SaveModel(const std::string& folder, const Gpt& model, const Tokenizer* tokenizer,
                 bool overwrite, const SaveSettings& settings) {
  HEED_TRY(MakeFolder(folder));
  SpecialTokens special;
  if (tokenizer != nullptr) {
    if (tokenizer->bos()) special.bos = *tokenizer->bos();
    if (tokenizer->eos()) special.eos = *tokenizer->eos();
  }
  HEED_TRY(WriteText(Inside(folder, "config.json"),
                     ModelConfigJson(model.config(), special, settings.dtype), overwrite));
  if (tokenizer != nullptr) {
    HEED_TRY(WriteText(Inside(folder, "tokenizer.json"), tokenizer->Json(), overwrite));
  }
  return WriteShards(folder, CutShards(model, settings), overwrite);
}

}  // namespace heed
