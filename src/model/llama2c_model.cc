#include "model/llama2c_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <map>

#include "base/quote.h"
#include "io/file.h"
#include "io/llama2c.h"
#include "model/names.h"
#include "nn/rope.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

// What the format takes for granted.
constexpr double kTheta = 10000, kEps = 1e-5;
constexpr FileOrder kOrder = {.out_in = true, .interleaved = true};

bool IsRotaryTable(std::string_view name) { return name == "freqs_cos" || name == "freqs_sin"; }

ModelConfig ConfigOf(const Llama2cSizes& s) {
  ModelConfig c;
  c.n_layer = s.n_layers;
  c.n_head = s.n_heads;
  c.n_kv_head = s.n_kv_heads;
  c.n_embd = s.dim;
  c.n_inner = s.hidden_dim;
  c.block_size = s.seq_len;
  c.vocab_size = s.vocab_size;
  c.position = Position::kRope;
  c.rope_theta = kTheta;
  c.norm = NormKind::kRmsNorm;
  c.norm_eps = kEps;
  c.mlp = MlpKind::kSwiglu;
  c.bias = false;
  c.tied = s.shared_classifier;
  return c;
}

Status CheckFits(const ModelConfig& c, const std::string& path) {
  const auto refuse = [&path](std::string found, std::string expected) {
    return BadRequest(path, std::move(found), std::move(expected),
                      "llama2.c's format has no place for it; a folder holds every model");
  };
  if (c.family() != Family::kLlama) return refuse("a model that is not Llama's", "Llama's parts");
  if (c.attention_bias != AttentionBias::kNone) return refuse("biases", "none");
  if (c.n_head * c.head_dim != c.n_embd) {
    return refuse(
        fmt::format("head_dim {} at n_head {} and n_embd {}", c.head_dim, c.n_head, c.n_embd),
        "n_embd / n_head");
  }
  if (c.rope_theta != kTheta) return refuse(fmt::format("rope_theta {}", c.rope_theta), "10000");
  if (c.rope_scaling.rope_type != RopeStretch::kNone) return refuse("stretched rope", "plain rope");
  if (c.norm_eps != kEps) return refuse(fmt::format("norm_eps {}", c.norm_eps), "1e-05");
  if (c.sliding_window > 0 && c.sliding_window < c.block_size) {
    return refuse("a sliding window", "none");
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (c.vocab_size > kMost || c.block_size > kMost || c.n_inner > kMost || c.n_embd > kMost) {
    return refuse("a size above 2^31 - 1", "sizes of 32 bits");
  }
  return {};
}

Llama2cSizes SizesOf(const ModelConfig& c, int version) {
  const auto narrow = [](int64_t size) { return static_cast<int32_t>(size); };
  return {version,
          narrow(c.n_embd),
          narrow(c.n_inner),
          narrow(c.n_layer),
          narrow(c.n_head),
          narrow(c.n_kv_head),
          narrow(c.vocab_size),
          narrow(c.block_size),
          c.tied};
}

}  // namespace

std::string VocabularyBeside(const std::string& path) {
  return (std::filesystem::path(path).parent_path() / "tokenizer.bin").string();
}

Result<LoadedModel> LoadLlama2c(const std::string& path, const Kernels& kernels,
                                const std::string& vocabulary, Weights weights) {
  HEED_ASSIGN(Llama2cFile opened, Llama2cFile::Open(path));
  const auto kept = std::make_shared<const Llama2cFile>(std::move(opened));
  const Llama2cFile& file = *kept;
  LoadedModel loaded;
  HEED_ASSIGN(loaded.model, EmptyModel(ConfigOf(file.sizes()), kernels, weights));
  if (weights != Weights::kOwned) loaded.model->parameters().Keep(kept);
  std::vector<SourceTensor> tensors;
  for (const TensorEntry& entry : file.tensors()) {
    tensors.push_back({path, entry.name, entry.shape, BlockType::kF32, file.Bytes(entry)});
  }
  HEED_ASSIGN(loaded.report, LoadNamed(tensors, Naming::kMeta, kOrder, IsRotaryTable, path, weights,
                                       loaded.model.get()));
  std::error_code error;
  if (vocabulary == VocabularyBeside(path) && !std::filesystem::exists(vocabulary, error)) {
    loaded.tokenizer = Fail(ErrorKind::kRequest, path, "no vocabulary",
                            Quoted(vocabulary) + ", for the file itself holds none");
    return loaded;
  }
  loaded.tokenizer = OpenTokenizer(vocabulary);
  HEED_TRY(CheckVocabulary(loaded.tokenizer, loaded.model->config(), vocabulary));
  return loaded;
}

Status SaveLlama2c(const std::string& path, const Gpt& model, int version, bool overwrite) {
  const ModelConfig& c = model.config();
  HEED_TRY(CheckFits(c, path));
  const Llama2cSizes sizes = SizesOf(c, version);
  const RopeTable angles(c.block_size, c.head_dim, c.rope_theta, 0);
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter& p : model.parameters().all()) {
    parameters[*NameIn(Naming::kMeta, Family::kLlama, p.name)] = &p;
  }
  HEED_ASSIGN(AtomicFile file, AtomicFile::Create(path, overwrite));
  HEED_TRY(file.Write(Llama2cHeader(sizes)));
  for (const TensorEntry& entry : Llama2cTensors(sizes)) {
    std::vector<float> values;
    if (IsRotaryTable(entry.name)) {
      values = entry.name == "freqs_cos" ? angles.cos : angles.sin;
    } else {
      const Parameter& p = *parameters.at(entry.name);
      values.resize(static_cast<size_t>(p.elements));
      ToFileOrder(kOrder, c, p, p.values, values.data());
    }
    HEED_TRY(file.Write(std::as_bytes(std::span(values))));
  }
  return file.Commit();
}

}  // namespace heed
